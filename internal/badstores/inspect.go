package badstores

import (
	"context"
	"iter"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := check.Key(key); err != nil {
		return driver.KeyInfo{}, err
	}
	if err := ctx.Err(); err != nil {
		return driver.KeyInfo{}, err
	}
	l := s.enter(key)
	defer s.leave()
	s.settle(l)
	info := driver.KeyInfo{Key: key}
	for _, c := range l.claims {
		owner := c.Owner
		if s.bug == ShowsIDs {
			owner += "/" + c.ID
		}
		if s.bug == TrimsOwners {
			owner = strings.TrimRight(owner, " ")
		}
		if c.held {
			info.Holders = append(info.Holders, driver.HolderInfo{
				Owner: owner, Weight: c.Weight, Capacity: c.Capacity, Token: c.token, Age: time.Since(c.since), Remaining: time.Until(c.end), Grant: s.grantOf(c),
			})
		} else {
			info.Waiters = append(info.Waiters, driver.WaiterInfo{
				Owner: owner, Weight: c.Weight, Capacity: c.Capacity, Age: time.Since(c.since),
			})
		}
	}
	return info, nil
}

// List implements driver.Inspector.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		s.mu.Lock()
		var keys []string
		for key := range s.keys {
			match := strings.HasPrefix(key, prefix)
			if s.bug == PrefixIsPattern {
				match, _ = path.Match(prefix+"*", key)
			}
			if match {
				keys = append(keys, key)
			}
		}
		s.mu.Unlock()
		if err := ctx.Err(); err != nil {
			yield(driver.KeyInfo{}, err)
			return
		}
		for _, key := range keys {
			info, err := s.Inspect(ctx, key)
			if len(info.Holders)+len(info.Waiters) == 0 && err == nil {
				continue
			}
			if !yield(info, err) || err != nil {
				return
			}
		}
	}
}

// grantOf is the HolderInfo.Grant of a holder.
func (s *Store) grantOf(c *claim) string {
	if s.bug == GrantsByOwner {
		return driver.GrantOf(c.Owner)
	}
	return driver.GrantOf(c.ID)
}

// Break implements driver.Inspector.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (int, error) {
	if err := check.Key(key); err != nil {
		return 0, err
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	l, err := s.enterTo(ctx, BreaksTooSoon, key, "")
	defer s.leave()
	if err != nil {
		return 0, err
	}
	meant := func(c *claim) bool { return c.held && driver.Among(s.grantOf(c), grants) }
	if s.bug == LooksThenBreaks && slices.ContainsFunc(l.claims, meant) {
		s.mu.Unlock()
		time.Sleep(time.Millisecond / 4) // time for a release and a grant
		s.mu.Lock()
		meant = func(c *claim) bool { return c.held }
	}
	holders, _ := l.split()
	if s.bug == BreakKeepsToken && len(holders) > 0 {
		s.last = holders[0].token - 1
	}
	l.broken = nil
	l.claims = slices.DeleteFunc(slices.Clone(l.claims), func(c *claim) bool {
		if meant(c) {
			l.broken = append(l.broken, c)
			return true
		}
		return s.bug == BreakDropsQueue && !c.held
	})
	s.advance(l)
	return len(l.broken), nil
}
