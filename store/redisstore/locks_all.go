package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// AcquireAll implements driver.Together by one script, for locks of any kind. In Cluster
// they must share a slot, by a common {tag} in their keys or in the prefix; otherwise it
// returns errors.ErrUnsupported.
func (s *Store) AcquireAll(ctx context.Context, r []driver.Request) ([]driver.Grant, error) {
	if err := check.Together(r, traits); err != nil {
		return nil, err
	}
	all := make([]lockNames, len(r))
	for i, q := range r {
		var err error
		if all[i], err = s.names.of(q.Key); err != nil {
			return nil, err
		}
		// All locks of a slot, or of a single server, share a counter.
		if all[i].counter != all[0].counter {
			return nil, fmt.Errorf("redis: in Cluster, %q and %q lie on different slots: %w", r[0].Key, q.Key, errors.ErrUnsupported)
		}
	}
	call := wire.Call{
		Script: togetherScript,
		Keys:   append(make([]string, 0, 2+5*len(r)), all[0].counter, all[0].high),
		Args:   make([]string, 0, 5*len(r)),
	}
	for i, n := range all {
		q := r[i]
		if err := s.unresolved.recall(ctx, q.ID); err != nil {
			return nil, err
		}
		call.Locks = append(call.Locks, n.lock)
		call.Keys = append(call.Keys, n.lock, n.queue(), n.waiters(), n.shared(), n.info())
		call.Args = append(call.Args, q.ID, q.Owner, want(q.Claim), millis(q.TTL), tokenArg(q.Claim))
	}
	call.Acks = s.replicas.ask(r[0].TTL)
	answer, err := s.runCall(ctx, call)
	if granted := list(answer); err == nil && len(granted) > 0 && number(granted[0]) == 0 {
		err = s.replicas.missing(call.Acks, r[0].Key)
	}
	for i := range r {
		s.unresolved.attempted(r[i].ID, r[i].Retry, err)
	}
	if err != nil {
		return nil, err
	}
	a := list(answer)
	if len(a) == 0 {
		return nil, strange(togetherScript, answer)
	}
	if i := int(number(a[0])) - 1; i >= 0 && i < len(r) {
		if err := s.refused(all[i], r[i], a[1:]); err != nil {
			return nil, err
		}
	}
	if number(a[0]) != 0 || len(a) != 1+len(r) {
		return nil, strange(togetherScript, answer)
	}
	grants := make([]driver.Grant, len(r))
	for i := range grants {
		s.busy.Set(all[i].lock, false)
		s.clock.observe(number(a[1+i]))
		grants[i] = grant(number(a[1+i]), r[i].TTL.Truncate(time.Millisecond))
	}
	return grants, nil
}
