package baton

import (
	"context"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// AskPrefix and the key of a lock form the name under which a request to release that
// lock stands in the store, as a lock of its own. "baton ls" shows it, with the reason as
// the owner.
const AskPrefix = "ask/"

// askEvery is the shortest time between two looks for requests to release a lock.
const askEvery = time.Second

// Ask asks the holders of key to release it, and says why: a deployment that waits for a
// long job, for example. It is a request: holders that look for it (Lease.Asked) learn of
// it within about a third of their TTL, or a second if that is longer, and decide. Break is the way
// that needs nobody's consent. Nobody need hold the lock.
//
// The request stands until the lease that Ask returns is unlocked; that of a program that
// crashed, for the TTL; none for longer than Config.MaxHold. Ask does not wait, and does
// not lock key: call Lock for that.
// Several requests can stand at once, on a store with read locks, and else one.
//
// Errors are TryLock's; a *HeldError if another request stands on a store without read
// locks; a *KeyError also for a key that is longer than the longest one less AskPrefix;
// ErrUnsupported if holders could not learn of it because the store cannot show its locks.
// The reason is legal as Owner is.
func (l *Locker) Ask(ctx context.Context, key, reason string) (*Lease, error) {
	if err := askable(key); err != nil {
		return nil, err
	}
	if _, err := l.inspector(); err != nil {
		return nil, err
	}
	opts := []Option{Owner(reason)}
	if l.traits.Shared {
		opts = append(opts, Shared())
	}
	return l.TryLock(ctx, AskPrefix+key, opts...)
}

func askable(key string) error {
	return check.Prefixed(AskPrefix, key, "a request to release it")
}

// Asked returns a channel on which the lease receives the reason of each request to
// release its lock (Locker.Ask), also of those that stood before. It is closed when the
// lease ends. A reason that comes while the last one is not yet received is dropped.
//
// From the first call on the lease looks in the store for requests, about every third of
// its TTL, at most once a second: one more question each time. All calls return the same
// channel, those of nested leases, too. The channel is closed at once if the store
// cannot show its locks, or if the key is too long for Ask.
func (l *Lease) Asked() <-chan string {
	t, k := l.root(), l.keeper
	in, err := k.locker.inspector()
	if err == nil {
		err = askable(k.key())
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if t.asked == nil {
		t.asked = make(chan string, 1)
		if err != nil || t.over() {
			close(t.asked)
		} else {
			go t.lookForRequests(in, t.asked)
		}
	}
	return t.asked
}

// lookForRequests tells of the requests to release the lock until the lease ends.
func (t *Lease) lookForRequests(in driver.Inspector, asked chan<- string) {
	defer close(asked)
	key, held := AskPrefix+t.Key(), t.Context(context.Background())
	every := max(t.keeper.acq.Terms().TTL/3, askEvery)
	pause := time.NewTimer(0)
	defer pause.Stop()
	type request struct {
		token  int64 // 0 where the store does not know it
		reason string
	}
	told := map[request]bool{}
	for {
		select {
		case <-held.Done():
			return
		case <-pause.C:
		}
		ctx, cancel := context.WithTimeout(held, every)
		info, err := in.Inspect(ctx, key)
		cancel()
		if err == nil { // else the next look may succeed
			stand := make(map[request]bool, len(info.Holders))
			for _, h := range info.Holders {
				r := request{h.Token, h.Owner}
				if stand[r] = true; told[r] {
					continue
				}
				select {
				case asked <- h.Owner:
				default:
				}
			}
			told = stand
		}
		pause.Reset(every)
	}
}
