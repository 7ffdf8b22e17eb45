package badstores

import "github.com/batonhq/baton/driver"

type watch struct {
	driver.Claim
	wake func(driver.Hint)
}

func (s *Store) hint(c *claim, h driver.Hint) {
	for w := range s.watches {
		if w.Key == c.Key && w.ID == c.ID && s.bug != Silent {
			s.due = append(s.due, func() { w.wake(h) })
		}
	}
}

// Watch implements driver.Watcher.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	w := &watch{c, wake}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.watches[w] = true
	return func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		delete(s.watches, w)
	}
}
