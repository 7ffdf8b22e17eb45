// Package lockfeed reports events of locks by polling: no store reports the events of all
// its locks.
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

// Values of Event.What.
const (
	Got     = "got"     // Owner holds the lock
	Ended   = "ended"   // Owner no longer holds it: it was released, expired, or broken
	Waits   = "waits"   // Waiting is the new number of waiters
	Ready   = "ready"   // the feed is up to date: sent at its beginning, after missed events, and when the store answers again
	Unknown = "unknown" // the store does not answer; the next event of another kind says that it answers again
)

const (
	// MaxKeys is the largest number of locks below a prefix.
	MaxKeys = 10_000

	// maxOwners is how many waiters an Event names.
	maxOwners = 10

	soonest  = 500 * time.Millisecond
	latest   = 10 * time.Second
	share    = 10 // looks take at most 1/share of the time, as long as the pause is below latest
	patience = 30 * time.Second
)

// An Event is one change of one lock.
type Event struct {
	ID      int64    `json:"-"` // rises within one feed
	What    string   `json:"-"`
	Key     string   `json:"key,omitempty"`
	Owner   string   `json:"owner,omitempty"`
	Mode    string   `json:"mode,omitempty"`
	Token   string   `json:"token,omitempty"` // a string, because it may exceed 2⁵³
	Grant   string   `json:"grant,omitempty"`
	Waiting *int     `json:"waiting,omitempty"`
	Owners  []string `json:"owners,omitempty"` // of the first waiters
}

// TooManyError says that more than MaxKeys locks are below the prefix.
type TooManyError struct{ Prefix string }

func (e *TooManyError) Error() string {
	return fmt.Sprintf("more than %d locks have a holder or a waiter below %q: name a longer prefix", MaxKeys, driver.Printable(e.Prefix))
}

// known is the state of a lock in one look.
type known struct {
	holders []driver.HolderInfo
	waiting int
	owners  []string
}

// A List yields all locks below a prefix that have a holder or a waiter.
type List func(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error]

// Feeds poll the locks of a store for all readers: the store is asked once per prefix, for
// any number of readers. All methods are safe for concurrent use.
type Feeds struct {
	list List

	mu sync.Mutex
	by map[string]*looks // by prefix
}

// New returns Feeds of the locks that list yields.
func New(list List) *Feeds { return &Feeds{list: list, by: make(map[string]*looks)} }

// looks polls the locks below one prefix, while there are readers. Feeds.mu guards the
// fields that change.
type looks struct {
	prefix  string
	readers int
	begun   int           // the number of looks that have begun
	last    look          // the last look that has ended
	another chan struct{} // closed when last changes

	stop  context.CancelFunc
	ended chan struct{}
}

// A look is the result of one poll.
type look struct {
	n   int // 0: no look has ended yet
	all map[string]known
	err error
}

// ErrMissed is an error of tell: the reader did not get the events. Follow continues, and
// tells the whole present state again.
var ErrMissed = errors.New("the events were missed")

// Follow tells the state of the locks below a prefix, and then their changes. It returns
// nil when ctx ends, or the error of tell. Its other errors are a *TooManyError,
// ErrUnsupported, and any error of the first look.
//
// Follow looks about twice a second, or less often, so that looks take a tenth of the
// time; the pause between two looks is at most ten seconds. It calls tell after each look
// and once a second, also without an event. It does not tell what came and went between
// two looks. It keeps no events for a slow reader, which always gets the present state.
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
			before, failing = nil, false // the reader may have missed Unknown
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

// enter makes the caller a reader of the looks that begin after the look number seen.
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

// leave removes a reader. After the last one it ends the looks, and waits for their end.
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

// changes returns the events between two looks, in the order of the keys. Ended comes
// before Got of the same lock.
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
