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

// ErrNoLeader says that there is no leader at the moment.
var ErrNoLeader = errors.New("election: nobody leads")

const (
	// lookEvery is the mean time between two looks of an observer.
	lookEvery = 500 * time.Millisecond

	// lookFor is how long the store may take to answer one look.
	lookFor = 5 * time.Second
)

// A Term is a leadership as other processes see it. Its leader may have crashed or
// lost the store since: only the leader itself knows that it leads.
type Term struct {
	// Led says that there is a leader. Without one all other fields are zero.
	Led bool

	// Value is what the leader published: Candidate.Value, or what it gave to
	// Leadership.Publish since.
	Value string

	// Token is the leadership's fencing token. It is 0 on Redlock, where no server
	// knows it.
	Token int64

	// Age is how long the leader has been elected, by the store's clock.
	// Negative if the store does not know.
	Age time.Duration

	// Remaining is how long the leadership lasts unless it is renewed.
	Remaining time.Duration
}

// Leader asks the store once who leads. The error is ErrNoLeader if there is no
// leader, otherwise one of Locker.Inspect.
func Leader(ctx context.Context, locks *baton.Locker, name string) (Term, error) {
	t, err := look(ctx, locks, name)
	if err == nil && !t.Led {
		err = fmt.Errorf("election %q: %w", name, ErrNoLeader)
	}
	return t, err
}

// Observe yields at once the present leader, or that there is none, and then each
// change until ctx ends, which ends it without an error. A change is another token
// or value, or that there is no leader any more. A value that the leader publishes is a
// change with the same token. A leader that was followed by
// another and elected again is a change; on Redlock, where no tokens are seen, only
// if the value differs.
//
// It looks twice a second. Changes between two looks, or while the body of the loop
// runs, are merged: the latest state is always delivered. Changes are seen late by
// that much; the leader itself knows sooner.
//
// If the store cannot be asked, Observe yields that once as an error with the last
// Term that it saw, and continues to look; when the store answers again, it yields
// what it sees even if that is the same. *KeyError and ErrUnsupported, which
// another look cannot cure, end it.
func Observe(ctx context.Context, locks *baton.Locker, name string) iter.Seq2[Term, error] {
	return func(yield func(Term, error) bool) {
		var last Term
		known, failing := false, false // whether last was seen; whether the store is out of reach
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
			case <-time.After(lookEvery*3/4 + rand.N(lookEvery/2)): // so that observers do not look all at once
			case <-ctx.Done():
			}
		}
	}
}

// look asks the store once.
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
