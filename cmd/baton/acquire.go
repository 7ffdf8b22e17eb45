package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// asking are the flags of commands that acquire a lock.
type asking struct {
	wait    time.Duration
	try     bool
	shared  bool
	permits string
	ttl     time.Duration
	ownTTL  bool // --ttl was given
	most    int  // --max-waiting; 0: any number
	newest  bool
	waiters *baton.Locker // with newest: for the locks of waiters

	options []baton.Option // after check
	waits   bool           // after check: --wait was given
	left    time.Duration  // of --wait, once the store is open
}

func (k *asking) flags(cmd *cobra.Command) {
	f := cmd.Flags()
	f.DurationVarP(&k.wait, "wait", "w", 0, "how long to wait for the lock, and for a store that is away (default: no limit; connect-timeout for the store)")
	f.BoolVarP(&k.try, "try", "n", false, "do not wait at all")
	f.IntVar(&k.most, "max-waiting", 0, "fail if `N` or more are already waiting (default: no limit)")
	f.BoolVarP(&k.shared, "shared", "s", false, "take the read lock: readers hold together, writers alone")
	f.StringVar(&k.permits, "permits", "", "take `N/OF` permits: 2/10 is two of ten")
	f.DurationVar(&k.ttl, "ttl", baton.DefaultTTL, "how long the lock outlives a holder that crashed; the default is shortened to what the store accepts")
	cmd.MarkFlagsMutuallyExclusive("wait", "try")
	cmd.MarkFlagsMutuallyExclusive("max-waiting", "try")
	cmd.MarkFlagsMutuallyExclusive("shared", "permits")
}

// check refuses flags that make no sense. It needs no store.
func (k *asking) check(cmd *cobra.Command, key string) error {
	if err := check.Key(key); err != nil {
		return usage("%w", err)
	}
	if k.waits = cmd.Flags().Changed("wait"); k.waits && k.wait <= 0 {
		return usage("--wait %v: it is a duration above zero; not to wait at all is -n", k.wait)
	}
	k.left = k.wait
	k.ownTTL = cmd.Flags().Changed("ttl")
	if k.ttl <= 0 {
		return usage("--ttl %v: it is a duration above zero", k.ttl)
	}
	k.options = nil
	switch {
	case k.shared:
		k.options = append(k.options, baton.Shared())
	case cmd.Flags().Changed("permits"):
		of, total, ok := strings.Cut(k.permits, "/")
		n, err1 := strconv.Atoi(of)
		m, err2 := strconv.Atoi(total)
		if !ok || err1 != nil || err2 != nil || n < 1 || m < n || m > baton.MaxPermits {
			return usage("--permits %s: it is N/OF, such as 2/10, with N from 1 to OF and OF at most %d", safe(k.permits), baton.MaxPermits)
		}
		k.options = append(k.options, baton.Permits(n, m))
	}
	switch {
	case k.most > 0:
		k.options = append(k.options, baton.MaxWaiting(k.most))
	case cmd.Flags().Changed("max-waiting"):
		return usage("--max-waiting %d: it is at least 1; not to wait at all is -n", k.most)
	}
	return nil
}

// checkTTL refuses a --ttl that the store cannot keep. Without the flag it chooses one
// that the store can keep.
func (k *asking) checkTTL(traits driver.Traits) error {
	if !k.ownTTL {
		k.ttl = baton.DefaultTTLOf(traits)
	}
	if k.ttl < traits.MinTTL || traits.MaxTTL > 0 && k.ttl > traits.MaxTTL {
		return usage("--ttl %v: store %s accepts %v to %v", k.ttl, traits.Store, traits.MinTTL, traits.MaxTTL)
	}
	return nil
}

// listen subscribes to those of the signals that this process does not ignore. Processes
// that nohup or a shell starts in the background ignore some from the start.
func listen(sigs ...os.Signal) (ch chan os.Signal, stop func()) {
	ch = make(chan os.Signal, 16)
	for _, s := range sigs {
		if !signal.Ignored(s) {
			signal.Notify(ch, s)
		}
	}
	return ch, func() { signal.Stop(ch) }
}

// ends reports whether a signal asks to stop waiting.
func ends(s os.Signal) bool {
	return s == syscall.SIGINT || s == syscall.SIGTERM || s == syscall.SIGHUP || s == syscall.SIGQUIT
}

// acquire gets the lock or gives up: at once if asked to, when the wait is over, or at a
// signal. After an error this process holds nothing and is in no queue.
func (a *app) acquire(locks *baton.Locker, key, owner string, k *asking, sigs <-chan os.Signal) (*baton.Lease, error) {
	type result struct {
		lease *baton.Lease
		err   error
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	got := make(chan result, 1)
	go func() {
		lease, err := a.await(ctx, locks, key, owner, k)
		got <- result{lease, err}
	}()
	var given os.Signal
	for {
		select {
		case r := <-got:
			if given == nil {
				return r.lease, r.err
			}
			if r.lease != nil {
				_ = r.lease.Unlock()
			}
			return nil, interrupted(given)
		case s := <-sigs:
			if ends(s) && given == nil {
				given = s
				cancel()
			}
		}
	}
}

// await tries once. If another process holds the lock it says so, and waits.
func (a *app) await(ctx context.Context, locks *baton.Locker, key, owner string, k *asking) (*baton.Lease, error) {
	start := time.Now()
	waiting := ctx
	if k.waits {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, k.left)
		defer cancel()
	}
	var first firstCall
	lease, err := locks.TryLock(first.of(waiting), key, k.options...)
	var held *baton.HeldError
	again := errors.As(err, &held) || errors.Is(err, baton.ErrUnavailable) || errors.Is(err, baton.ErrUnknown)
	if k.try || !again || waiting.Err() != nil {
		first.only()
		return lease, notAcquired(err, key, k)
	}
	if held != nil && held.Owner != "" && held.Owner == os.Getenv("BATON_OWNER") && key == os.Getenv("BATON_KEY") {
		first.only()
		return nil, &exit{Code: exitNotAcquired, Err: fmt.Errorf("lock %q is held by the baton run (%s) that started this: it would wait for itself", safe(key), safe(held.Owner))}
	}

	announced := func() {}
	if full := k.most > 0 && held != nil && held.Waiting >= k.most; !full { // else it will not wait
		announced = a.announce(waiting, locks, key, owner, held, err)
	}
	if k.newest {
		lease, err = awaitNewest(waiting, k.waiters, locks, key, k.ttl, k.options)
	} else {
		lease, err = locks.Lock(waiting, key, k.options...)
	}
	announced()
	if err != nil && waiting.Err() != nil && ctx.Err() == nil {
		if now := holder(locks, key); now != nil {
			held = now
		}
		if held != nil {
			return nil, &exit{Code: exitNotAcquired, Err: fmt.Errorf("not acquired in %s: %s", short(time.Since(start)), describe(held))}
		}
	}
	return lease, notAcquired(err, key, k)
}

// notAcquired adds advice to the error of a lock that is held.
func notAcquired(err error, key string, k *asking) error {
	if full, ok := errors.AsType[*baton.QueueFullError](err); ok {
		return &exit{Code: exitNotAcquired, Err: fmt.Errorf("lock %q is held, with %d waiting already, as many as --max-waiting allows; try again later, or look with: baton show %s",
			safe(key), full.Waiting, shellWord(key))}
	}
	var held *baton.HeldError
	if !errors.As(err, &held) {
		return err
	}
	if k.try {
		return &exit{Code: exitNotAcquired, Err: fmt.Errorf("%s; wait with -w 10s or look with: baton show %s", describe(held), shellWord(key))}
	}
	return &exit{Code: exitNotAcquired, Err: fmt.Errorf("%s; look with: baton show %s", describe(held), shellWord(key))}
}

// describe says which process holds a lock; the owner's name is escaped. "Expires unless
// renewed" would read like a time-out to those who wait, so it says what happens if the
// holder crashes.
func describe(held *baton.HeldError) string {
	var s string
	switch {
	case held.Owner != "" && strings.ContainsAny(held.Owner, "\", ()"):
		s = fmt.Sprintf("lock %q is held by %q", safe(held.Key), safe(held.Owner))
	case held.Owner != "":
		s = fmt.Sprintf("lock %q is held by %s", safe(held.Key), safe(held.Owner))
	case held.Foreign:
		s = fmt.Sprintf("lock %q is held by a program that is not Baton", safe(held.Key))
	default:
		s = fmt.Sprintf("lock %q is held", safe(held.Key))
	}
	switch {
	case held.Remaining > 0 && held.Foreign:
		s += fmt.Sprintf(" (expires in %s unless renewed)", short(held.Remaining))
	case held.Remaining > 0 && held.Age > 0:
		s += fmt.Sprintf(" (for %s; if it crashes, free in %s at the latest)", short(held.Age), short(held.Remaining))
	case held.Remaining > 0:
		s += fmt.Sprintf(" (if it crashes, free in %s at the latest)", short(held.Remaining))
	case held.Age > 0:
		s += fmt.Sprintf(" (for %s)", short(held.Age))
	}
	if held.Waiting > 0 {
		s += fmt.Sprintf(", %d waiting", held.Waiting)
	}
	return s
}

// holder asks which process holds the key. It returns nil if none does, or if the store
// does not tell.
func holder(locks *baton.Locker, key string) *baton.HeldError {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Second)
	defer cancel()
	info, err := locks.Inspect(ctx, key)
	if err != nil || len(info.Holders) == 0 {
		return nil
	}
	return heldBy(info)
}

func heldBy(info driver.KeyInfo) *baton.HeldError {
	held := &baton.HeldError{Key: info.Key, Waiting: len(info.Waiters)}
	if len(info.Holders) > 0 {
		first := info.Holders[0]
		held.Owner, held.Age, held.Remaining, held.Foreign = first.Owner, first.Age, first.Remaining, first.Foreign
	}
	return held
}
