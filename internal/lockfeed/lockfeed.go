// Package lockfeed tells what happens to locks, by looking at them again and again: stores
// tell nobody of all their locks.
package lockfeed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
)

// What an Event can say.
const (
	Got     = "got"     // Owner has the lock
	Ended   = "ended"   // Owner has it no more: it was released, expired, or broken
	Waits   = "waits"   // so many wait now as Waiting says
	Ready   = "ready"   // the events before it are of what stood when the feed began
	Unknown = "unknown" // the store does not answer; the next event of another kind says that it does again
)

const (
	// MaxKeys is how many locks there may be below a prefix.
	MaxKeys = 10_000

	// maxOwners is how many of those that wait are named.
	maxOwners = 10

	soonest  = 500 * time.Millisecond
	latest   = 10 * time.Second
	share    = 10 // a look takes at most one part in so many of the time
	patience = 30 * time.Second
)

// An Event is one change of one lock.
type Event struct {
	ID      int64    `json:"-"` // of the feed: each has a higher one
	What    string   `json:"-"`
	Key     string   `json:"key,omitempty"`
	Owner   string   `json:"owner,omitempty"`
	Mode    string   `json:"mode,omitempty"`
	Token   string   `json:"token,omitempty"` // it may exceed 2⁵³
	Grant   string   `json:"grant,omitempty"`
	Waiting *int     `json:"waiting,omitempty"`
	Owners  []string `json:"owners,omitempty"` // of the first that wait
}

// TooManyError says that there are more locks below the prefix than are looked at.
type TooManyError struct{ Prefix string }

func (e *TooManyError) Error() string {
	return fmt.Sprintf("more than %d locks have a holder or a waiter below %q: name a longer prefix", MaxKeys, driver.Printable(e.Prefix))
}

// known is what a lock was at the last look.
type known struct {
	holders []driver.HolderInfo
	waiting int
	owners  []string
}

// Follow tells the locks below a prefix, and then their changes, until ctx ends, which is no
// error, or tell fails. It looks about twice a second, or as seldom as a look takes a tenth of
// the time, and calls tell after each look, also with no event. What came and went between two
// looks is not told; nothing is kept for a reader that is slow, and the present state always
// comes. The errors are tell's, *TooManyError, that of the first look, and ErrUnsupported.
func Follow(ctx context.Context, list func(context.Context, string) iter.Seq2[driver.KeyInfo, error], prefix string, tell func([]Event) error) error {
	var before map[string]known
	var id int64
	failing := false
	for {
		began := time.Now()
		now, err := look(ctx, list, prefix)
		var events []Event
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && (before == nil || errors.Is(err, errors.ErrUnsupported) || errors.As(err, new(*TooManyError))):
			return err
		case err != nil && !failing:
			failing, events = true, []Event{{What: Unknown}}
		case err == nil:
			events = changes(before, now)
			if before == nil || failing {
				events = append(events, Event{What: Ready})
			}
			before, failing = now, false
		}
		for i := range events {
			id++
			events[i].ID = id
		}
		took := time.Since(began)
		if err := tell(events); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(min(max(soonest, (share-1)*took), latest)):
		}
	}
}

func look(ctx context.Context, list func(context.Context, string) iter.Seq2[driver.KeyInfo, error], prefix string) (map[string]known, error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	all := make(map[string]known)
	for info, err := range list(ctx, prefix) {
		switch {
		case err != nil:
			return nil, err
		case len(all) == MaxKeys:
			return nil, &TooManyError{prefix}
		}
		k := known{holders: info.Holders, waiting: len(info.Waiters)}
		for _, w := range info.Waiters[:min(maxOwners, len(info.Waiters))] {
			k.owners = append(k.owners, w.Owner)
		}
		all[info.Key] = k
	}
	return all, nil
}

// changes are in the order of the keys; of one lock first who has it no more.
func changes(before, now map[string]known) (all []Event) {
	keys := make([]string, 0, len(now))
	for key := range now {
		keys = append(keys, key)
	}
	for key := range before {
		if _, still := now[key]; !still {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	for _, key := range keys {
		was, is := before[key], now[key]
		about := func(what string, h driver.HolderInfo) {
			e := Event{What: what, Key: valid(key), Owner: valid(h.Owner), Mode: h.Mode(), Grant: h.Grant}
			if h.Token != 0 {
				e.Token = fmt.Sprint(h.Token)
			}
			all = append(all, e)
		}
		for _, h := range was.holders {
			if !slices.ContainsFunc(is.holders, func(o driver.HolderInfo) bool { return o.Grant == h.Grant && o.Owner == h.Owner }) {
				about(Ended, h)
			}
		}
		for _, h := range is.holders {
			if !slices.ContainsFunc(was.holders, func(o driver.HolderInfo) bool { return o.Grant == h.Grant && o.Owner == h.Owner }) {
				about(Got, h)
			}
		}
		if was.waiting != is.waiting || !slices.Equal(was.owners, is.owners) {
			n := is.waiting
			e := Event{What: Waits, Key: valid(key), Waiting: &n}
			for _, owner := range is.owners {
				e.Owners = append(e.Owners, valid(owner))
			}
			all = append(all, e)
		}
	}
	return all
}

func valid(text string) string { return strings.ToValidUTF8(text, "�") }
