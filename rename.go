package baton

import (
	"context"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/acquire"
)

// Rename makes the store show owner as the holder of the lock, from now on, to people
// who ask. The rules for owner are those of the option Owner; "" is Config.Owner. The
// lock itself, its token and its end stay as they are. A lease that is nested in
// another one renames the lock of both. From now on the process does not hand the lease
// over to another goroutine.
//
// Errors: ErrUnsupported if the store cannot; a *LostError if the lease has ended. After
// ErrUnknown, and a context's error, the store may show either owner. Of two calls at
// the same time either may win.
func (l *Lease) Rename(ctx context.Context, owner string) error {
	k := l.keeper
	lk := k.locker
	r, ok := driver.As[driver.Renamer](lk.store)
	if !ok {
		return fmt.Errorf("baton: store %s cannot change the owner of a lock that is held: %w", lk.traits.Store, ErrUnsupported)
	}
	if err := ctx.Err(); err != nil {
		return fail("rename", l.Key(), err)
	}
	owner = lk.ownerOf(&ask{owner: owner})
	_, err := lk.insist(ctx, k.acq.Terms(), func(call context.Context, _ acquire.Moment) error {
		c, err := l.Pin() // a request that is late must not rename another lease
		if err != nil {
			return err
		}
		return r.Rename(call, c, owner)
	})
	k.mu.Lock()
	k.commit(k.acq.Renamed(owner, err))
	if lost := l.Err(); lost != nil {
		return lost
	}
	if err != nil {
		return fail("rename", l.Key(), blame(ctx, err))
	}
	return nil
}
