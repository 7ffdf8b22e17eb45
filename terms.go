package baton

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton/internal/acquire"
)

// maxReleasePause is the longest pause between two tries of a release in the
// background: each lock of the process may have such a release.
const maxReleasePause = 5 * time.Second

func newTerms(cfg Config) *acquire.Terms {
	return &acquire.Terms{TTL: cfg.TTL, Margin: cfg.Margin, LockDelay: cfg.LockDelay, MaxHold: cfg.MaxHold, Jitter: rand.N[time.Duration]}
}

// termsOf are the terms of one call.
func (l *Locker) termsOf(a *ask) (*acquire.Terms, error) {
	if a.ttl == 0 && a.minHold == 0 {
		return l.terms, nil
	}
	ttl := cmp.Or(a.ttl, l.terms.TTL)
	if t := l.other.Load(); t != nil && t.TTL == ttl && t.MinHold == a.minHold {
		return t, nil
	}
	cfg := l.cfg
	if cfg.TTL = ttl; l.marginFollows {
		cfg.Margin = 0
	}
	if err := cfg.complete(l.traits); err != nil {
		return nil, err
	}
	if a.minHold > 0 && l.traits.Sessions {
		return nil, fmt.Errorf("baton: store %s ties a lock to the process that took it, and cannot keep it taken for a MinHold: %w", l.traits.Store, ErrUnsupported)
	}
	if most := l.traits.MaxTTL; most > 0 && a.minHold > most {
		return nil, &ConfigError{"MinHold", fmt.Sprintf("is %v; store %s accepts at most %v", a.minHold, l.traits.Store, most)}
	}
	t := newTerms(cfg)
	t.MinHold = a.minHold
	l.other.Store(t)
	return t, nil
}

// explain adds what the store said last to err, the reason why a caller's context has ended:
// without it, an outage looks like a lock that others hold. said may be nil.
func explain(ctx context.Context, err, said error) error {
	if ctx.Err() == nil || said == nil {
		return err
	}
	return fmt.Errorf("%w; the store said last: %v", err, said)
}
