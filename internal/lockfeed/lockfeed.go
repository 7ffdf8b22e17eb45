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
	"sync"
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

// A List yields all locks below a prefix that have a holder or a waiter.
type List func(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error]

// Feeds look at the locks of a store for all who follow them: those with one prefix cost the
// store what one costs. The methods are safe for concurrent use.
type Feeds struct {
	list List

	mu sync.Mutex
	by map[string]*looks // by prefix
}

// New makes Feeds of what list yields.
func New(list List) *Feeds { return &Feeds{list: list, by: make(map[string]*looks)} }

// looks are those at the locks below one prefix, as long as that has readers. Feeds.mu guards
// what changes.
type looks struct {
	prefix  string
	readers int
	begun   int           // how many looks have begun
	last    look          // the last that has ended
	another chan struct{} // closed when last is another one

	stop  context.CancelFunc
	ended chan struct{}
}

// A look is what was seen at a time.
type look struct {
	n   int // 0: there was none yet
	all map[string]known
	err error
}

// ErrMissed is an error of tell: its reader has not got the events. Follow goes on, and tells all
// that stands again.
var ErrMissed = errors.New("the events were missed")

// Follow tells the locks below a prefix, and then their changes, until ctx ends, which is no
// error, or tell fails. It looks about twice a second, or as seldom as a look takes a tenth of
// the time, and calls tell after each look and once a second, also with no event. What came and
// went between two looks is not told; nothing is kept for a reader that is slow, and the present
// state always comes. The errors are tell's, *TooManyError, that of the first look, and
// ErrUnsupported.
func (f *Feeds) Follow(ctx context.Context, prefix string, tell func([]Event) error) error {
	l, seen := f.enter(prefix)
	defer f.leave(l)
	var before map[string]known
	var id int64
	first, failing := true, false
	for {
		f.mu.Lock()
		now, another := l.last, l.another
		f.mu.Unlock()
		var events []Event
		if now.n > seen {
			switch err := now.err; {
			case err != nil && (first || errors.Is(err, errors.ErrUnsupported) || errors.As(err, new(*TooManyError))):
				return err
			case err != nil && !failing:
				failing, events = true, []Event{{What: Unknown}}
			case err == nil:
				events = changes(before, now.all)
				if before == nil || failing {
					events = append(events, Event{What: Ready})
				}
				before, failing = now.all, false
			}
			seen, first = now.n, false
		}
		for i := range events {
			id++
			events[i].ID = id
		}
		if err := tell(events); errors.Is(err, ErrMissed) {
			before, failing = nil, false // it may not have got Unknown
		} else if err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return nil
		case <-another:
		case <-time.After(time.Second):
		}
	}
}

// enter makes the caller a reader of the looks that begin from now on.
func (f *Feeds) enter(prefix string) (l *looks, seen int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if l = f.by[prefix]; l == nil {
		ctx, stop := context.WithCancel(context.Background())
		l = &looks{prefix: prefix, another: make(chan struct{}), stop: stop, ended: make(chan struct{})}
		f.by[prefix] = l
		go f.look(ctx, l)
	}
	l.readers++
	return l, l.begun
}

// leave ends the looks, and waits for that, after their last reader.
func (f *Feeds) leave(l *looks) {
	f.mu.Lock()
	l.readers--
	last := l.readers == 0
	if last {
		delete(f.by, l.prefix)
	}
	f.mu.Unlock()
	if last {
		l.stop()
		<-l.ended
	}
}

func (f *Feeds) look(ctx context.Context, l *looks) {
	defer close(l.ended)
	for ctx.Err() == nil {
		f.mu.Lock()
		l.begun++
		now := look{n: l.begun}
		f.mu.Unlock()
		began := time.Now()
		now.all, now.err = read(ctx, f.list, l.prefix)
		took := time.Since(began)
		f.mu.Lock()
		l.last = now
		close(l.another)
		l.another = make(chan struct{})
		f.mu.Unlock()
		select {
		case <-ctx.Done():
		case <-time.After(min(max(soonest, (share-1)*took), latest)):
		}
	}
}

func read(ctx context.Context, list List, prefix string) (map[string]known, error) {
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
