//go:build linux

package faulttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

const handEnv = "BATON_FAULTTEST_HAND"

func init() {
	if url := os.Getenv(handEnv); url != "" {
		if err := handMain(url, os.Args[1]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
}

// handMain does what its input says, line by line, and answers each with one
// line; it ends when its input does:
//
//	lock KEY          held TOKEN
//	detach            handle HANDLE
//	attach HANDLE     held TOKEN, or: lost
//	unlock            unlocked, or: lost
func handMain(url, ttl string) error {
	ctx := context.Background()
	d, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	store, err := open.Store(ctx, url)
	if err != nil {
		return err
	}
	locks, err := baton.New(store, baton.Config{TTL: d})
	if err != nil {
		return err
	}
	var lease *baton.Lease
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		verb, arg, _ := strings.Cut(in.Text(), " ")
		answer := ""
		switch verb {
		case "lock":
			lease, err = locks.Lock(ctx, arg)
		case "attach":
			lease, err = locks.Attach(ctx, arg)
		case "detach":
			answer, err = lease.Detach()
			answer = "handle " + answer
		case "unlock":
			answer, err = "unlocked", lease.Unlock()
		}
		switch {
		case verb != "lock" && errors.Is(err, baton.ErrLost):
			answer = "lost"
		case err != nil:
			return err
		case answer == "":
			answer = "held " + strconv.FormatInt(lease.Token(), 10)
		}
		fmt.Println(answer)
	}
	return nil
}

// hand is such a process.
type hand struct {
	child
	in io.Writer
}

func startHand(t *testing.T, url string, ttl time.Duration) *hand {
	t.Helper()
	h := &hand{child: child{Cmd: exec.Command(os.Args[0], ttl.String())}}
	h.Env = append(os.Environ(), handEnv+"="+url)
	h.Stderr = os.Stderr
	in, err := h.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := h.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	h.in, h.out = in, bufio.NewReader(out)
	if err := h.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		h.Process.Kill()
		h.Wait()
	})
	return h
}

// told gives an order and does not wait for the answer.
func (h *hand) told(t *testing.T, order string) {
	t.Helper()
	if _, err := fmt.Fprintln(h.in, order); err != nil {
		t.Fatal(err)
	}
}

// does gives an order, whose answer begins with word, and returns the rest of
// that.
func (h *hand) does(t *testing.T, order, word string) string {
	t.Helper()
	h.told(t, order)
	return strings.Join(h.expect(t, word), " ")
}

// oneTaker reports whether the store lets only one process take up a handle.
func oneTaker(t *testing.T, url string) bool {
	_, ok := openStore(t, url).(driver.Mover)
	return ok
}

// free takes the lock, which must be free within the ttl, and returns its
// token. The rest of the bound is for a busy machine.
func free(t *testing.T, locks *baton.Locker, key string, since time.Time, ttl time.Duration) int64 {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	lease, err := locks.Lock(ctx, key)
	if err != nil {
		t.Fatal(err)
	}
	if d := time.Since(since); d > ttl+10*time.Second {
		t.Errorf("free after %v, with a TTL of %v", d, ttl)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
	return lease.Token()
}

// A lease goes from process to process with its token, and only the process that has it
// renews it. One of the two is killed at each step of the way: the lease stands if the
// other has it, and is free within the TTL if neither has it. It is also free within
// the TTL if the process that has it stops. All steps share the time that it takes to
// see that.
func TestLeaseGoesFromProcessToProcess(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const ttl = 5 * time.Second // a process that detaches or attaches may pause for half of it
	onStores(t, func(t *testing.T, url string) {
		locks := newLocker(t, url, baton.Config{TTL: ttl})
		var hands [8]*hand
		for i := range hands {
			hands[i] = startHand(t, url, ttl)
		}
		for i, h := range hands { // which are slow to begin
			h.does(t, fmt.Sprint("lock ", t.Name(), "/warm/", i), "held")
			h.does(t, "unlock", "unlocked")
		}
		tokens := map[string]int64{}
		detached := func(h *hand, key string) (handle string) {
			t.Helper()
			tokens[key] = number(t, h.does(t, "lock "+t.Name()+"/"+key, "held"))
			return h.does(t, "detach", "handle")
		}
		attach := func(h *hand, key, handle string) {
			t.Helper()
			if got := number(t, h.does(t, "attach "+handle, "held")); got != tokens[key] {
				t.Errorf("%s: token %d became %d", key, tokens[key], got)
			}
		}
		began := time.Now()
		handle := detached(hands[0], "lives")
		attach(hands[1], "lives", handle)
		if oneTaker(t, url) {
			hands[2].does(t, "attach "+handle, "lost")
			hands[0].does(t, "attach "+handle, "lost")
		}

		handle = detached(hands[3], "killed when it had detached")
		hands[3].signal(t, syscall.SIGKILL)
		attach(hands[2], "killed when it had detached", handle)

		forgotten := detached(hands[4], "killed, and nobody comes")
		hands[4].signal(t, syscall.SIGKILL)

		attach(hands[5], "killed when it had attached", detached(hands[0], "killed when it had attached"))
		hands[5].signal(t, syscall.SIGKILL)

		attach(hands[7], "stopped when it had attached", detached(hands[0], "stopped when it had attached"))
		hands[7].signal(t, syscall.SIGSTOP)

		hands[6].told(t, "attach "+detached(hands[0], "killed while it attached"))
		hands[6].signal(t, syscall.SIGKILL)
		killed := time.Now()

		for _, key := range []string{"killed, and nobody comes", "killed when it had attached", "killed while it attached", "stopped when it had attached"} {
			if next := free(t, locks, t.Name()+"/"+key, killed, ttl); next <= tokens[key] {
				t.Errorf("%s: token %d after %d", key, next, tokens[key])
			}
		}
		hands[0].does(t, "attach "+forgotten, "lost")
		hands[7].signal(t, syscall.SIGCONT)
		hands[7].does(t, "unlock", "lost")

		// Time passes: a process that does not renew loses the lease.
		<-time.After(time.Until(began.Add(ttl + time.Second)))
		for key, h := range map[string]*hand{"lives": hands[1], "killed when it had detached": hands[2]} {
			if _, err := locks.TryLock(t.Context(), t.Name()+"/"+key); !errors.Is(err, baton.ErrHeld) {
				t.Errorf("%s: after a TTL: %v", key, err)
			}
			attach(hands[0], key, h.does(t, "detach", "handle")) // and on
			hands[0].does(t, "unlock", "unlocked")
			if next := free(t, locks, t.Name()+"/"+key, time.Now(), 0); next <= tokens[key] {
				t.Errorf("%s: token %d after %d", key, next, tokens[key])
			}
		}
	})
}
