package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// onAllNodes calls f for every node concurrently. It fails unless a majority answers, and
// returns the answering nodes.
func (s *Store) onAllNodes(ctx context.Context, f func(ctx context.Context, i int, in driver.Inspector) error) (ok set, err error) {
	if err := s.check(ctx); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, openTimeout)
	defer cancel()
	errs := make([]error, len(s.nodes))
	var wg sync.WaitGroup
	for i, n := range s.nodes {
		if !n.admits() {
			errs[i] = errLeftAlone
			continue
		}
		wg.Go(func() {
			in, err := s.reach(ctx, n)
			if err != nil {
				if !unreachable(err) {
					err = fmt.Errorf("%w: %w", driver.ErrUnavailable, err) // one of several
				}
				errs[i] = err
				return
			}
			inspector, can := in.Member.(driver.Inspector)
			if !can {
				errs[i] = fmt.Errorf("redlock: %s cannot show its locks: %w", n.name, errors.ErrUnsupported)
				return
			}
			began := time.Now()
			errs[i] = f(ctx, i, inspector)
			s.account(n, errs[i], min(time.Since(began), slow-1)) // a long list is no bad sign
		})
	}
	wg.Wait()
	var silent set
	for i, e := range errs {
		switch {
		case e == nil:
			ok |= 1 << i
		case !unreachable(e):
			if notLock, is := errors.AsType[*driver.NotLockError](e); is {
				e = &driver.NotLockError{Key: notLock.Key, Store: "redlock", Found: notLock.Found}
			}
			return 0, e
		default:
			silent |= 1 << i
			err = e
		}
	}
	if ok.count() < s.quorum {
		return 0, fmt.Errorf("redlock: %w: no majority; no answer from %s: %w", driver.ErrUnavailable, s.names(silent), err)
	}
	return ok, nil
}

// Inspect implements driver.Inspector. It shows the holders of key on a majority of the
// nodes, and the waiters on any. A claim has the same HolderInfo.Grant on every node.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := check.Key(key); err != nil {
		return driver.KeyInfo{}, err
	}
	views := make([]driver.KeyInfo, len(s.nodes))
	ok, err := s.onAllNodes(ctx, func(ctx context.Context, i int, in driver.Inspector) (err error) {
		views[i], err = in.Inspect(ctx, key)
		return err
	})
	if err != nil {
		return driver.KeyInfo{}, err
	}
	return s.merge(key, views, ok), nil
}

// List implements driver.Inspector. It shows every key that is held on a majority or
// waited for. It first reads the full lists of all nodes.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		lists := make([]map[string]driver.KeyInfo, len(s.nodes))
		ok, err := s.onAllNodes(ctx, func(ctx context.Context, i int, in driver.Inspector) error {
			lists[i] = map[string]driver.KeyInfo{}
			for info, err := range in.List(ctx, prefix) {
				if err != nil {
					return err
				}
				lists[i][info.Key] = info
			}
			return nil
		})
		if err != nil {
			yield(driver.KeyInfo{}, err)
			return
		}
		keys := map[string]bool{}
		for i := range lists {
			if ok.has(i) {
				for key := range lists[i] {
					keys[key] = true
				}
			}
		}
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			views := make([]driver.KeyInfo, len(lists))
			for i := range lists {
				views[i] = lists[i][key]
			}
			if info := s.merge(key, views, ok); len(info.Holders)+len(info.Waiters) > 0 && !yield(info, nil) {
				return
			}
		}
	}
}

// Break implements driver.Inspector, on every node.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	info, err := s.Inspect(ctx, key)
	if err != nil {
		return 0, err
	}
	var onNodes atomic.Int64
	_, err = s.onAllNodes(ctx, func(ctx context.Context, _ int, in driver.Inspector) error {
		n, err := in.Break(ctx, key, grants...)
		onNodes.Add(int64(n))
		return err
	})
	if err != nil && unreachable(err) {
		return 0, fmt.Errorf("%w: %w", driver.ErrUnknown, err)
	}
	if onNodes.Load() == 0 {
		return 0, err
	}
	info.Holders = slices.DeleteFunc(info.Holders, func(h driver.HolderInfo) bool { return !driver.Among(h.Grant, grants) })
	return len(info.Holders), err
}

// kindOfClaim is the part of a claim that is the same on all nodes.
type kindOfClaim struct {
	owner            string
	weight, capacity int64
	foreign          bool
}

// holding is the part of a grant that is the same on all nodes.
type holding struct {
	kindOfClaim
	grant string
}

func holdingOf(h driver.HolderInfo) holding {
	return holding{kindOfClaim{h.Owner, h.Weight, h.Capacity, h.Foreign}, h.Grant}
}

// merge merges the views of the nodes in ok.
func (s *Store) merge(key string, views []driver.KeyInfo, ok set) driver.KeyInfo {
	info := driver.KeyInfo{Key: key}
	holders := map[holding][]driver.HolderInfo{} // on each node that shows it
	most := map[kindOfClaim]int{}                // the most such claims on one node
	for i, v := range views {
		if !ok.has(i) {
			views[i] = driver.KeyInfo{}
			continue
		}
		here := map[kindOfClaim]int{}
		meet := func(k kindOfClaim) {
			here[k]++
			most[k] = max(most[k], here[k])
		}
		for _, h := range v.Holders {
			k := holdingOf(h)
			meet(k.kindOfClaim)
			holders[k] = append(holders[k], h)
		}
		for _, w := range v.Waiters {
			meet(kindOfClaim{w.Owner, w.Weight, w.Capacity, false})
		}
	}
	held := map[holding]driver.HolderInfo{}
	for k, all := range holders {
		if len(all) < s.quorum {
			continue
		}
		slices.SortFunc(all, func(a, b driver.HolderInfo) int { return cmp.Compare(b.Remaining, a.Remaining) })
		h := all[s.quorum-1] // since then there is a majority
		h.Token = 0          // unknown to the nodes
		for _, on := range all {
			h.Age = max(h.Age, on.Age) // a node may have granted it later
		}
		held[k] = h
		most[k.kindOfClaim]-- // the others wait
	}
	// Holders of the same age are in the order of the node that has most of them.
	sorted := slices.Clone(views)
	slices.SortStableFunc(sorted, func(a, b driver.KeyInfo) int { return len(b.Holders) - len(a.Holders) })
	for _, v := range sorted {
		for _, h := range v.Holders {
			k := holdingOf(h)
			if one, shown := held[k]; shown {
				info.Holders = append(info.Holders, one)
				delete(held, k)
			}
		}
	}
	slices.SortStableFunc(info.Holders, func(a, b driver.HolderInfo) int { return cmp.Compare(b.Age, a.Age) })
	slices.SortStableFunc(sorted, func(a, b driver.KeyInfo) int { return len(b.Waiters) - len(a.Waiters) })
	for _, v := range sorted {
		for _, w := range v.Waiters {
			if k := (kindOfClaim{w.Owner, w.Weight, w.Capacity, false}); most[k] > 0 {
				most[k]--
				info.Waiters = append(info.Waiters, w)
			}
		}
	}
	return info
}
