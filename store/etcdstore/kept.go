package etcdstore

import (
	"context"
	"errors"
	"iter"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/kept"
)

var (
	_ driver.Records      = (*Store)(nil)
	_ driver.RecordLister = (*Store)(nil)
	_ limits.Overrider    = (*Store)(nil)
)

// records and overrides implement driver.Records, driver.RecordLister and
// limits.Overrider. Each text is on a lease of its own, which the server ends up to a few
// seconds after its time. A new leader gives every lease its full time again.
//
// The store does not know how much longer a record is kept. For an override it computes
// that by the clock of this machine.
// the clock of the calling machine.
type (
	records   = kept.Records
	overrides = kept.Overrides
)

// textName is in a folder without positions of a queue: see stateDir.
func (s *Store) textName(f kept.Folder, key string) string { return s.prefix + "\t" + f.Name(key) }

// revokeTime bounds the clean-up after a call.
const revokeTime = 2 * time.Second

// swapText reads if next is empty, asks for a lease that lasts a little longer than keep,
// and writes: one request each.
func (s *Store) swapText(ctx context.Context, f kept.Folder, key, old, next string, keep time.Duration) (is kept.Text, swapped bool, err error) {
	if err := s.ready(ctx); err != nil {
		return is, false, err
	}
	name := s.textName(f, key)
	same := createRev(name, 0)
	if old == "" {
		resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(name)})
		if err != nil {
			return is, false, readFailure(ctx, err)
		}
		if is = textIn(resp); is.Text != "" || next == "" {
			return is, is.Text == "", nil
		}
	} else {
		same = &pb.Compare{
			Key: []byte(name), Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL,
			TargetUnion: &pb.Compare_Value{Value: []byte(old)},
		}
	}
	var lease int64
	write := remove(name)
	if next == "" {
		write.GetRequestDeleteRange().PrevKv = true
	} else {
		granted, err := s.leaser.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: seconds(keep + time.Second)})
		if err != nil { // at worst there is an unused lease
			return is, false, readFailure(ctx, err)
		}
		lease = granted.ID
		write = put(name, next, lease)
		write.GetRequestPut().PrevKv = true
	}
	resp, err := s.kv.Txn(ctx, &pb.TxnRequest{
		Compare: only(same),
		Success: ops(write),
		Failure: ops(&pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(name)}}}),
	})
	switch {
	case leaseGone(err): // the process was stopped for longer than the lease lasts
		return is, false, unavailable(errors.New("the request took longer than its effect was to be kept"))
	case err != nil:
		return is, false, failure(ctx, err) // which of the leases is in use is unknown
	case !resp.Succeeded:
		s.dropLease(lease)
		return textIn(rangeOf(resp.Responses[0])), false, nil
	}
	for _, kv := range resp.Responses[0].GetResponseDeleteRange().GetPrevKvs() {
		s.dropLease(kv.Lease)
	}
	s.dropLease(resp.Responses[0].GetResponsePut().GetPrevKv().GetLease())
	return kept.Text{Text: next}, true, nil
}

func textIn(resp *pb.RangeResponse) (is kept.Text) {
	for _, kv := range resp.GetKvs() {
		is.Text = string(kv.Value)
	}
	return is
}

// dropLease ends a lease without names, unless it is 0. If that fails the lease expires.
func (s *Store) dropLease(id int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed || id == 0 {
		return
	}
	s.work.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, revokeTime)
		defer cancel()
		_, _ = s.leaser.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: id})
	})
}

// listTexts yields uncut texts.
func (s *Store) listTexts(ctx context.Context, f kept.Folder, prefix string) iter.Seq2[kept.Text, error] {
	return func(yield func(kept.Text, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(kept.Text{}, err)
			return
		}
		dir := s.textName(f, "")
		next, end := []byte(dir+prefix), prefixEnd(dir+prefix)
		for more := true; more; {
			resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: next, RangeEnd: end, Limit: int64(kept.Page(f))})
			if err != nil {
				yield(kept.Text{}, readFailure(ctx, err))
				return
			}
			more = resp.More
			for _, kv := range resp.Kvs {
				next = append(append(next[:0:0], kv.Key...), 0)
				if !yield(kept.Text{Key: strings.TrimPrefix(string(kv.Key), dir), Text: string(kv.Value)}, nil) {
					return
				}
			}
		}
	}
}
