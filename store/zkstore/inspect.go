package zkstore

import (
	"context"
	"errors"
	"iter"
	"strings"
	"sync"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// parallel is the number of concurrent requests.
const parallel = 16

// Inspect implements driver.Inspector. Remaining is the TTL: only the holder's process
// knows the time of its last renewal.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	info := driver.KeyInfo{Key: key}
	if err := s.beginInspect(ctx, key); err != nil {
		return info, err
	}
	return s.inspect(ctx, key)
}

// beginInspect checks the key, and syncs the server.
func (s *Store) beginInspect(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	if s.closed.Load() {
		return driver.ErrClosed
	}
	return refused("sync", s.root, s.sync(ctx))
}

func (s *Store) inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	info := driver.KeyInfo{Key: key}
	parent := s.parent(key)
	all, _, err := s.readQueue(ctx, parent)
	if err == zk.ErrNoNode {
		return info, nil
	} else if err != nil {
		return info, refused("list", parent, err)
	}
	data := make([]nodeFacts, len(all))
	errs := make([]error, len(all))
	each(len(all), func(i int) { data[i], errs[i] = s.readFacts(ctx, parent, all[i]) })
	n := holders(all)
	for i, c := range all {
		if errs[i] == zk.ErrNoNode {
			continue // it was deleted meanwhile
		} else if errs[i] != nil {
			return info, refused("read", parent+"/"+c.factsNode(), errs[i])
		}
		f := data[i].facts
		age, ok := s.clock.since(f.since(data[i].stat))
		if !ok {
			age = -1
		}
		if i < n {
			info.Holders = append(info.Holders, driver.HolderInfo{
				Owner: f.owner, Weight: c.weight, Capacity: c.capacity, Token: data[i].stat.Czxid,
				Age: age, Remaining: f.ttl, Foreign: f.foreign, Grant: driver.GrantOf(c.lock),
			})
		} else {
			info.Waiters = append(info.Waiters, driver.WaiterInfo{Owner: f.owner, Weight: c.weight, Capacity: c.capacity, Age: age})
		}
	}
	return info, nil
}

// nodeFacts is what the nodes of a contender say.
type nodeFacts struct {
	facts
	stat *zk.Stat
}

// readFacts reads the nodes of a contender. A writer that became a reader has its owner
// in its second node, because a Rename may not write the first.
func (s *Store) readFacts(ctx context.Context, parent string, c *contender) (nodeFacts, error) {
	d, err := s.get(ctx, parent+"/"+c.factsNode())
	if err != nil {
		return nodeFacts{}, err
	}
	t := nodeFacts{readData(d.data), d.stat}
	if !c.exclusive() && c.write != c.lock {
		if d, err = s.get(ctx, parent+"/"+c.write); err != nil {
			return nodeFacts{}, err
		}
		t.owner = readData(d.data).owner
	}
	return t, nil
}

// each calls f for 0 to n-1, a few at a time.
func each(n int, f func(i int)) {
	if n == 1 {
		f(0)
		return
	}
	var wg sync.WaitGroup
	gate := make(chan struct{}, parallel)
	for i := range n {
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			f(i)
		})
	}
	wg.Wait()
}

// List implements driver.Inspector. It leaves out nodes below the root whose children are
// no contenders.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		if s.closed.Load() {
			yield(driver.KeyInfo{}, driver.ErrClosed)
			return
		}
		err := s.sync(ctx)
		var names []string
		if err == nil || err == zk.ErrNoNode {
			names, _, err = s.children(ctx, s.root)
		}
		if err == zk.ErrNoNode {
			return // no lock was ever acquired
		} else if err != nil {
			yield(driver.KeyInfo{}, refused("list", s.root, err))
			return
		}
		var keys []string
		for _, n := range names {
			if key, ok := unescape(n); ok && strings.HasPrefix(key, prefix) {
				keys = append(keys, key)
			}
		}
		for len(keys) > 0 {
			page := keys[:min(len(keys), 4*parallel)]
			keys = keys[len(page):]
			infos := make([]driver.KeyInfo, len(page))
			errs := make([]error, len(page))
			each(len(page), func(i int) { infos[i], errs[i] = s.inspect(ctx, page[i]) })
			for i, info := range infos {
				if errs[i] != nil {
					yield(driver.KeyInfo{}, errs[i])
					return
				}
				if len(info.Holders)+len(info.Waiters) > 0 && !yield(info, nil) {
					return
				}
			}
		}
	}
}

// Break implements driver.Inspector. It also ends holders of other programs, if the
// access list allows that. It deletes nodes by their names, which are unique for each
// grant.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (int, error) {
	if err := s.beginInspect(ctx, key); err != nil {
		return 0, err
	}
	parent := s.parent(key)
	all, _, err := s.readQueue(ctx, parent)
	if err == zk.ErrNoNode {
		return 0, nil
	} else if err != nil {
		return 0, refused("list", parent, err)
	}
	broken := 0
	for _, c := range all[:holders(all)] {
		if !driver.Among(driver.GrantOf(c.lock), grants) {
			continue
		}
		n, err := s.remove(ctx, parent, c.nodes)
		if err != nil {
			if errors.Is(err, driver.ErrUnavailable) && broken > 0 {
				err = uncertain(err)
			}
			return broken, refused("delete nodes below", parent, err)
		}
		if n > 0 {
			broken++
		}
	}
	return broken, nil
}
