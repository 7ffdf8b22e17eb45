package memstore

import (
	"context"
	"iter"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/internal/kept"
)

// records and overrides implement driver.Records, driver.RecordLister and
// limits.Overrider.
type (
	records   = kept.Records
	overrides = kept.Overrides
)

// texts are few and seldom used, compared with locks, so one mutex guards them.
type texts struct {
	mu  sync.Mutex
	all map[kept.Folder]map[string]keptText
}

type keptText struct {
	text string
	ends time.Duration // on the store's clock
}

// at is the text of a key at now.
func (t keptText) at(key string, now time.Duration) kept.Text {
	if t.ends <= now {
		return kept.Text{}
	}
	return kept.Text{Key: key, Text: t.text, Left: t.ends - now}
}

func (s *Store) swapText(ctx context.Context, f kept.Folder, key, old, next string, keep time.Duration) (is kept.Text, swapped bool, err error) {
	s.texts.mu.Lock()
	defer s.texts.mu.Unlock()
	if err := s.check(ctx); err != nil {
		return is, false, err
	}
	now, all := s.now(), s.texts.all[f]
	if is = all[key].at(key, now); is.Text != old {
		return is, false, nil
	}
	// Remove expired texts among a few others, in the random order of maps: more than a
	// caller can add.
	looked := 0
	for k, other := range all {
		if looked++; looked > 4 {
			break
		}
		if other.ends <= now {
			delete(all, k)
		}
	}
	if next == "" {
		delete(all, key)
		return kept.Text{}, true, nil
	}
	if all == nil {
		if s.texts.all == nil {
			s.texts.all = make(map[kept.Folder]map[string]keptText)
		}
		all = make(map[string]keptText)
		s.texts.all[f] = all
	}
	all[key] = keptText{next, now + keep}
	return all[key].at(key, now), true, nil
}

func (s *Store) listTexts(ctx context.Context, f kept.Folder, prefix string) iter.Seq2[kept.Text, error] {
	return func(yield func(kept.Text, error) bool) {
		s.texts.mu.Lock()
		var keys []string
		for key := range s.texts.all[f] {
			if strings.HasPrefix(key, prefix) {
				keys = append(keys, key)
			}
		}
		s.texts.mu.Unlock()
		if err := s.check(ctx); err != nil {
			yield(kept.Text{}, err)
			return
		}
		for _, key := range keys {
			if err := s.check(ctx); err != nil {
				yield(kept.Text{}, err)
				return
			}
			s.texts.mu.Lock()
			is := s.texts.all[f][key].at(key, s.now())
			s.texts.mu.Unlock()
			if is.Text != "" && !yield(is, nil) {
				return
			}
		}
	}
}
