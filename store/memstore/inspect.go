package memstore

import (
	"context"
	"iter"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/lockstate"
)

// Break implements driver.Inspector.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	if err := s.checkKey(ctx, key); err != nil {
		return 0, err
	}
	s.visit(key, func(st *lockstate.State, now time.Duration) { ended = st.Break(now, grants...) })
	return ended, nil
}

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := s.checkKey(ctx, key); err != nil {
		return driver.KeyInfo{}, err
	}
	info := driver.KeyInfo{Key: key}
	s.visit(key, func(st *lockstate.State, now time.Duration) { info = st.Inspect(now) })
	return info, nil
}

func (s *Store) checkKey(ctx context.Context, key string) error {
	if err := check.Key(key); err != nil {
		return err
	}
	return s.check(ctx)
}

// List implements driver.Inspector.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		for i := range s.shards {
			if err := s.check(ctx); err != nil {
				yield(driver.KeyInfo{}, err)
				return
			}
			for _, key := range s.shards[i].matching(prefix) {
				info, err := s.Inspect(ctx, key)
				if err != nil {
					yield(driver.KeyInfo{}, err)
					return
				}
				if len(info.Holders)+len(info.Waiters) > 0 && !yield(info, nil) {
					return
				}
			}
		}
	}
}

func (sh *shard) matching(prefix string) []string {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	var keys []string
	for key := range sh.keys {
		if strings.HasPrefix(key, prefix) {
			keys = append(keys, key)
		}
	}
	return keys
}
