package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/term"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/redlock"
)

// announce says that the lock is held and by which process: on a terminal in a line that
// it keeps up to date until done is called, elsewhere once. err is the error of the first
// try.
func (a *app) announce(ctx context.Context, locks *baton.Locker, key, owner string, held *baton.HeldError, err error) (done func()) {
	if a.quiet {
		return func() {}
	}
	if young, ok := errors.AsType[*redlock.YoungError](err); ok {
		a.say("%s", safe(young.Error()))
		return func() {}
	}
	if held == nil {
		a.say("the store is out of reach: trying again")
		return func() {}
	}
	if !term.IsTerminal(int(a.stderr.Fd())) {
		a.say("waiting: %s", describe(held))
		return func() {}
	}

	ctx, cancel := context.WithCancel(ctx)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		start := time.Now()
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		defer fmt.Fprint(a.messages, "\r\x1b[K")
		state := inTheWay(held)
		for {
			columns, _, err := term.GetSize(int(a.stderr.Fd()))
			if err != nil || columns < 20 {
				columns = 80
			}
			line := fmt.Sprintf("baton: waiting for %q (%s): %s", safe(key), short(time.Since(start).Round(time.Second)), state)
			fmt.Fprintf(a.messages, "\r\x1b[K%s", cut(line, columns-1))
			select {
			case <-ctx.Done():
				return
			case <-tick.C:
			}
			if now, ok := progress(ctx, locks, key, owner); ok {
				state = now
			}
		}
	}()
	return func() { cancel(); <-ended }
}

// progress says which process holds the key and how many waiters are ahead of owner.
func progress(ctx context.Context, locks *baton.Locker, key, owner string) (state string, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	info, err := locks.Inspect(ctx, key)
	if err != nil || len(info.Holders) == 0 {
		return "", false
	}
	state = inTheWay(heldBy(info))
	for i, w := range info.Waiters {
		if w.Owner == owner && i == 0 {
			return state + ", we are next", true
		}
		if w.Owner == owner {
			return state + fmt.Sprintf(", %d ahead of us", i), true
		}
	}
	return state, true
}

// inTheWay describes the holder in few words.
func inTheWay(held *baton.HeldError) string {
	s := "held by " + ownerLabel(held.Owner, held.Foreign)
	if held.Age > 0 {
		s += fmt.Sprintf(" for %s", short(held.Age.Round(time.Second)))
	}
	switch left := short(held.Remaining.Round(time.Second)); {
	case held.Remaining > 0 && held.Foreign:
		s += fmt.Sprintf(", expires in %s", left)
	case held.Remaining > 0:
		s += fmt.Sprintf(", free in %s if it has crashed", left)
	}
	return s
}
