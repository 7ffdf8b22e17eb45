package memstore

import (
	"slices"

	"github.com/batonhq/baton/driver"
)

type watch struct{ wake func(driver.Hint) }

// Watch implements driver.Watcher. wake is called when c was granted from the queue, when
// it was broken, and when the store is closed, on the goroutine of the causing call.
// Expiry has no causing call, and no wake.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	sh := s.shard(c.Key)
	name, w := claimName{c.Key, c.ID}, &watch{wake}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if s.closed.Load() {
		return func() {}
	}
	if sh.watches == nil {
		sh.watches = map[claimName][]*watch{}
	}
	sh.watches[name] = append(sh.watches[name], w)
	return func() {
		sh.mu.Lock()
		defer sh.mu.Unlock()
		left := slices.DeleteFunc(slices.Clone(sh.watches[name]), func(x *watch) bool { return x == w })
		if len(left) == 0 {
			delete(sh.watches, name)
		} else {
			sh.watches[name] = left
		}
	}
}
