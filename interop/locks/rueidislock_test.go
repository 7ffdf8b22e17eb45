package locks

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/redis/rueidis"
	"github.com/redis/rueidis/rueidislock"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
)

// besideRueidislock returns rueidislock with a majority of so many keys, and Baton on
// the same server.
func besideRueidislock(t *testing.T, majority int) (rueidislock.Locker, *baton.Locker) {
	t.Helper()
	client, url := onRedis(t)
	old, err := rueidislock.NewLocker(rueidislock.LockerOption{
		ClientOption: rueidis.ClientOption{InitAddress: []string{client.Options().Addr}},
		KeyMajority:  int32(majority),
		TryNextAfter: time.Second, // the default of 20 ms is too short for a busy machine
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(old.Close)
	return old, newLocker(t, url, baton.Config{})
}

// TestRueidislockAndBatonShareKeys takes, beside rueidislock with its default of three
// keys, two of these with LockAll: any two meet any two. One alone excludes nobody.
func TestRueidislockAndBatonShareKeys(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	for _, majority := range []int{1, 2} {
		t.Run(strconv.Itoa(majority), func(t *testing.T) {
			t.Parallel()
			old, locks := besideRueidislock(t, majority)
			name := "nightly" + strconv.Itoa(majority)
			all := []string{"rueidislock:0:" + name, "rueidislock:1:" + name, "rueidislock:2:" + name}
			keys := all[:majority]
			ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
			defer cancel()

			// rueidislock holds.
			_, release, err := old.TryWithContext(ctx, name)
			if err != nil {
				t.Fatal(err)
			}
			brief, stop := context.WithTimeout(ctx, 300*time.Millisecond)
			defer stop()
			if leases, err := locks.LockAll(brief, keys); err == nil {
				t.Errorf("Baton has %v, which rueidislock holds: %v", keys, leases)
			}
			release()

			// Baton holds.
			leases, err := locks.LockAll(ctx, keys)
			if err != nil {
				t.Fatal(err)
			}
			if _, release, err := old.TryWithContext(ctx, name); err == nil {
				release()
				t.Error("rueidislock has what Baton holds")
			}
			if err := leases.Unlock(); err != nil {
				t.Fatal(err)
			}

			// Both in turn.
			a := new(arena)
			var wg sync.WaitGroup
			const rounds = 15
			wg.Go(func() {
				for range rounds {
					leases, err := locks.LockAll(ctx, keys)
					if err != nil {
						t.Errorf("Baton: %v", err)
						return
					}
					a.run(1)
					if err := leases.Unlock(); err != nil {
						t.Errorf("Baton: %v", err)
					}
					pause(5 * time.Millisecond)
				}
			})
			wg.Go(func() {
				for range rounds {
					var release context.CancelFunc
					err := errors.New("not asked")
					for err != nil && ctx.Err() == nil { // WithContext can wait for ever after a slow answer
						if _, release, err = old.TryWithContext(ctx, name); err != nil {
							pause(2 * time.Millisecond)
						}
					}
					if err != nil {
						t.Errorf("rueidislock: %v", err)
						return
					}
					a.run(2)
					release()
					pause(5 * time.Millisecond)
				}
			})
			wg.Wait()
			a.check(t, 2*rounds)
			if majority == 1 {
				return
			}

			// What the page warns of: one of three keys is not enough.
			lease, err := locks.Lock(ctx, all[2])
			if err != nil {
				t.Fatal(err)
			}
			defer lease.Unlock()
			if _, release, err = old.TryWithContext(ctx, name); err != nil {
				t.Errorf("rueidislock minds one key of three: %v: then the page is wrong", err)
			} else {
				release()
			}
		})
	}
}

// TestRueidislockForces shows what docs/coming-from/go-locks.md warns of:
// ForceWithContext takes the lock of a Baton process that still considers itself the holder.
func TestRueidislockForces(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	old, locks := besideRueidislock(t, 1)
	lease, err := locks.Lock(t.Context(), "rueidislock:0:forced")
	if err != nil {
		t.Fatal(err)
	}
	_, release, err := old.ForceWithContext(t.Context(), "forced")
	if err != nil {
		t.Fatalf("the page is wrong: %v", err)
	}
	defer release()
	if err := lease.Err(); err != nil {
		t.Errorf("Baton knows already: %v: then the page is wrong", err)
	}
	if err := lease.Unlock(); !errors.Is(err, baton.ErrLost) {
		t.Errorf("Unlock of a lock that was overwritten: %v", err)
	}
}
