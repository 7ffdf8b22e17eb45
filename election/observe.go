package election

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// ErrNoLeader says that there is no leader at present.
var ErrNoLeader = errors.New("election: nobody leads")

const (
	// lookEvery is the mean time between two looks of an observer.
	lookEvery = 500 * time.Millisecond

	// lookFor bounds the store's answer to one look.
	lookFor = 5 * time.Second
)

// A Term is a leadership as seen by other processes. Its leader may have crashed or lost
// the store since: only the leader itself knows that it leads.
type Term struct {
	// Led says that there is a leader. Without one all other fields are zero.
	Led bool

	// Value is the leader's Candidate.Value, or its last Leadership.Publish.
	Value string

	// Token is the leadership's fencing token. It is 0 on Redlock, whose servers do not
	// know it.
	Token int64

	// Age is how long ago the leader was elected, by the store's clock. It is negative if
	// the store does not know it.
	Age time.Duration

	// Remaining is how long the leadership lasts unless it is renewed.
	Remaining time.Duration
}

// Leader asks the store once for the leader. The error is ErrNoLeader if there is none,
// otherwise one of Locker.Inspect.
func Leader(ctx context.Context, locks *baton.Locker, name string) (Term, error) {
	t, err := look(ctx, locks, name)
	if err == nil && !t.Led {
		err = fmt.Errorf("election %q: %w", name, ErrNoLeader)
	}
	return t, err
}

// Observe yields the present leader, or that there is none, at once, and then each change
// until ctx ends, which ends it without an error. A change is another token or value, or
// the end of the leadership; a published value is a change with the same token. On
// Redlock, which shows no tokens, the reelection of a leader after another one is a
// change only if the value differs.
//
// It looks twice a second, and sees changes late by as much. Changes between two looks,
// or during the body of the loop, are merged: the latest state is always yielded. The
// leader itself knows sooner.
//
// If the store cannot be asked, Observe yields that once as an error with the last Term,
// and continues to look. When the store answers again, it yields the state even if that
// is the same. *KeyError and ErrUnsupported, which another look cannot cure, end it.
func Observe(ctx context.Context, locks *baton.Locker, name string) iter.Seq2[Term, error] {
	return func(yield func(Term, error) bool) {
		var last Term
		known, failing := false, false // whether last is valid; whether the store is out of reach
		for ctx.Err() == nil {
			now, err := look(ctx, locks, name)
			switch {
			case ctx.Err() != nil:
				return
			case err == nil:
				news := !known || last.Led != now.Led || last.Token != now.Token || last.Value != now.Value
				last, known, failing = now, true, false
				if news && !yield(now, nil) {
					return
				}
			case errors.As(err, new(*baton.KeyError)) || errors.Is(err, baton.ErrUnsupported):
				yield(last, err)
				return
			case !failing:
				known, failing = false, true
				if !yield(last, err) {
					return
				}
			}
			select {
			case <-time.After(lookEvery*3/4 + rand.N(lookEvery/2)): // jitter, so that observers do not look all at once
			case <-ctx.Done():
			}
		}
	}
}

func look(ctx context.Context, locks *baton.Locker, name string) (Term, error) {
	ctx, cancel := context.WithTimeout(ctx, lookFor)
	defer cancel()
	info, err := locks.Inspect(ctx, name)
	if err != nil {
		return Term{}, err
	}
	for _, h := range info.Holders {
		if h.Weight == driver.Whole { // holders of a read lock or permits are no leaders
			return Term{Led: true, Value: h.Owner, Token: h.Token, Age: h.Age, Remaining: h.Remaining}, nil
		}
	}
	return Term{}, nil
}
