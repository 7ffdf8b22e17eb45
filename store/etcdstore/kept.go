package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/record"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
)

// recordDir is the folder of records, which are no positions in a queue: see stateDir.
// A record is one line of JSON.
const recordDir = "\trecords/"

func (s *Store) recordName(key string) string { return s.prefix + recordDir + key }

// recordPage is how many records ListRecords reads at once. They come with their results,
// which may be long.
const recordPage = 32

// revokeTime bounds the clean-up after a call.
const revokeTime = 2 * time.Second

// A keptRecord is what the server has.
type keptRecord struct {
	record.State
	rev   int64 // mod revision; 0: there is none
	lease int64
}

// BeginAttempt implements driver.Records. It reads the record, asks for a lease that
// lasts as long as the record is to be kept, and writes: three requests, and three more
// for each time that another process was faster. Times are those of the calling
// machine, and are only shown.
func (s *Store) BeginAttempt(ctx context.Context, a driver.Attempt, keep time.Duration) (driver.Record, error) {
	if err := check.Begin(a, keep); err != nil {
		return driver.Record{}, err
	}
	return s.changeRecord(ctx, a.Key, keep, func(st *record.State, now int64) (bool, error) { return st.Begin(a, now, keep) })
}

// FinishAttempt implements driver.Records, by as many requests as BeginAttempt.
func (s *Store) FinishAttempt(ctx context.Context, a driver.Attempt, o driver.Outcome, keep time.Duration) (driver.Record, error) {
	if err := check.Finish(a, o, keep); err != nil {
		return driver.Record{}, err
	}
	return s.changeRecord(ctx, a.Key, keep, func(st *record.State, now int64) (bool, error) { return st.Finish(a, o, now, keep) })
}

// changeRecord reads the record and writes what change makes of it, until the record
// was not changed in between. Each change is idempotent, so a caller whose write had no
// answer may ask again.
func (s *Store) changeRecord(ctx context.Context, key string, keep time.Duration, change func(*record.State, int64) (bool, error)) (driver.Record, error) {
	for {
		k, err := s.readRecord(ctx, key)
		if err != nil {
			return driver.Record{}, err
		}
		now := time.Now().UnixMicro()
		st := k.State
		changed, err := change(&st, now)
		st.Until = 0 // the lease ends it
		if err != nil || !changed {
			return st.Record(key, now), err
		}
		switch written, err := s.replaceKept(ctx, s.recordName(key), st.Text(), k.rev, k.lease, keep); {
		case err != nil:
			return driver.Record{}, err
		case written:
			return st.Record(key, now), nil
		}
	}
}

func (s *Store) readRecord(ctx context.Context, key string) (k keptRecord, err error) {
	if err := s.ready(ctx); err != nil {
		return k, err
	}
	resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.recordName(key))})
	if err != nil {
		return k, readFailure(ctx, err)
	}
	for _, kv := range resp.Kvs {
		k.rev, k.lease = kv.ModRevision, kv.Lease
		if k.State, err = record.Parse(string(kv.Value)); err != nil {
			return k, fmt.Errorf("etcd: %q: %w", s.recordName(key), err)
		}
	}
	return k, nil
}

// replaceKept replaces what was read under a name, of the revision rev and on a lease, by
// a text on a lease of its own, which lasts a little longer than keep. It reports whether
// what was read was still there.
func (s *Store) replaceKept(ctx context.Context, name, text string, rev, lease int64, keep time.Duration) (bool, error) {
	granted, err := s.leaser.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds(keep + time.Second)})
	if err != nil { // at worst there is an unused lease
		return false, readFailure(ctx, err)
	}
	resp, err := s.kv.Txn(ctx, &pb.TxnRequest{
		Compare: only(modRev(name, rev)),
		Success: ops(put(name, text, granted.ID)),
	})
	switch {
	case leaseGone(err): // the process was stopped for longer than the lease lasts
		return false, unavailable(errors.New("the request took longer than its effect was to be kept"))
	case err != nil:
		return false, failure(ctx, err) // which of the leases is in use is not known
	case !resp.Succeeded:
		s.dropLease(granted.ID)
	case lease != 0:
		s.dropLease(lease)
	}
	return resp.Succeeded, nil
}

// dropLease ends a lease that no name is on any more. If that fails it runs out by
// itself.
func (s *Store) dropLease(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return
	}
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, revokeTime)
		defer cancel()
		_, _ = s.leaser.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id})
	})
}

// FindRecord implements driver.Records by one request.
func (s *Store) FindRecord(ctx context.Context, key string) (driver.Record, error) {
	if err := check.Key(key); err != nil {
		return driver.Record{}, err
	}
	k, err := s.readRecord(ctx, key)
	if err == nil && k.rev == 0 {
		err = driver.ErrNoRecord
	}
	if err != nil {
		return driver.Record{}, err
	}
	return k.Record(key, 0), nil
}

// ListRecords implements driver.RecordLister. It reads results, too, and leaves out what
// is no record. It does not tell how much longer records are kept.
func (s *Store) ListRecords(ctx context.Context, prefix string) iter.Seq2[driver.Record, error] {
	return func(yield func(driver.Record, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(driver.Record{}, err)
			return
		}
		dir := s.recordName("")
		next, end := []byte(dir+prefix), prefixEnd(dir+prefix)
		for more := true; more; {
			resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: next, RangeEnd: end, Limit: recordPage})
			if err != nil {
				yield(driver.Record{}, readFailure(ctx, err))
				return
			}
			more = resp.More
			for _, kv := range resp.Kvs {
				next = append(append(next[:0:0], kv.Key...), 0)
				key := strings.TrimPrefix(string(kv.Key), dir)
				st, err := record.Parse(string(kv.Value))
				if err == nil && check.Key(key) == nil && !yield(st.Listed(key, 0), nil) {
					return
				}
			}
		}
	}
}

// ForgetRecord implements driver.Records by one request.
func (s *Store) ForgetRecord(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	there, err := s.removeKept(ctx, s.recordName(key))
	if err == nil && !there {
		err = driver.ErrNoRecord
	}
	return err
}

// removeKept removes a name and its lease. It reports whether it was there.
func (s *Store) removeKept(ctx context.Context, name string) (there bool, err error) {
	resp, err := s.kv.DeleteRange(ctx, &pb.DeleteRangeRequest{Key: []byte(name), PrevKv: true})
	if err != nil {
		return false, failure(ctx, err)
	}
	for _, kv := range resp.PrevKvs {
		if kv.Lease != 0 {
			s.dropLease(kv.Lease)
		}
	}
	return resp.Deleted > 0, nil
}

var _ limits.Overrider = (*Store)(nil)

// overrideDir is the folder of overrides of limits: see stateDir. An override is one
// line, as rate.Override.Text writes it.
const overrideDir = "\toverrides/"

func (s *Store) overrideName(key string) string { return s.prefix + overrideDir + key }

// shortestLeft is what Overrides tells at least of an override that its lease has not
// ended: long enough for the next look, if the clock of this machine is ahead.
const shortestLeft = 3 * time.Second

// SetOverride implements limits.Overrider, by four requests, and as many more for each
// time that another process was faster. An override is on a lease of its own, which the
// server ends up to a few seconds after the time.
func (s *Store) SetOverride(ctx context.Context, o limits.Override, keep time.Duration) error {
	if err := limits.CheckOverride(o, keep); err != nil {
		return err
	}
	if err := s.ready(ctx); err != nil {
		return err
	}
	name := s.overrideName(o.Key)
	if keep == 0 {
		_, err := s.removeKept(ctx, name)
		return err
	}
	for {
		there, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(name)})
		if err != nil {
			return readFailure(ctx, err)
		}
		var rev, lease int64
		for _, kv := range there.Kvs {
			rev, lease = kv.ModRevision, kv.Lease
		}
		if rev == 0 {
			dir := s.overrideName("")
			all, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(dir), RangeEnd: prefixEnd(dir), CountOnly: true})
			if err != nil {
				return readFailure(ctx, err)
			}
			if all.Count >= limits.MaxOverrides {
				return &limits.OverridesFullError{Key: o.Key, Store: traits.Store}
			}
		}
		text := rate.NewOverride(o, s.limits.wall(), keep).Text()
		if written, err := s.replaceKept(ctx, name, text, rev, lease, keep); written || err != nil {
			return err
		}
	}
}

// overrideGrace is by how much the clocks of the machine that set an override and of the
// one that looks may differ, before an override ends by its own time.
const overrideGrace = time.Minute

// Overrides implements limits.Overrider by one request. The leases of the server decide
// which overrides apply. A server that becomes the leader gives every lease its whole time
// again, so that an override also ends when its time is over by the clock of this machine,
// and by more than overrideGrace. What is left of its time is told by that clock.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	dir := s.overrideName("")
	resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(dir), RangeEnd: prefixEnd(dir)})
	if err != nil {
		return nil, readFailure(ctx, err)
	}
	now := s.limits.wall()
	for _, kv := range resp.Kvs {
		key := strings.TrimPrefix(string(kv.Key), dir)
		kept, ok := rate.ParseOverride(string(kv.Value))
		if !ok || check.Key(key) != nil {
			continue // not Baton's
		}
		if now-kept.Until > overrideGrace.Microseconds() {
			continue
		}
		o, _ := kept.At(key, now)
		o.Left = max(o.Left, shortestLeft)
		all = append(all, o)
	}
	return all, nil
}
