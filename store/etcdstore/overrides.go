package etcdstore

import (
	"context"
	"strings"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

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
			all, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(dir), RangeEnd: after(dir), CountOnly: true})
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
// which overrides stand. A server that becomes the leader gives every lease its whole time
// again, so that an override also ends when its time is over by the clock of this machine,
// and by more than overrideGrace. How much longer it stands is told by that clock.
func (s *Store) Overrides(ctx context.Context) (all []limits.Override, err error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	dir := s.overrideName("")
	resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(dir), RangeEnd: after(dir)})
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
