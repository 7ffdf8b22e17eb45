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

	"golang.org/x/sys/unix"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
)

const childEnv = "BATON_FAULTTEST_CHILD"

func TestMain(m *testing.M) {
	if file := os.Getenv(beatEnv); file != "" {
		beat(file)
	}
	if url := os.Getenv(limitEnv); url != "" {
		limitMain(url)
	}
	if url := os.Getenv(candidateEnv); url != "" {
		if err := candidateMain(url, os.Args[1], os.Args[2], os.Args[3], os.Args[4] == "true"); err != nil && !errors.Is(err, context.Canceled) {
			fmt.Fprintln(os.Stderr, "candidate:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(onceEnv); url != "" {
		err := error(nil)
		if len(os.Args) == 4 {
			err = onceMain(url, os.Args[1], os.Args[2], os.Args[3])
		} else {
			err = crowdMain(url, os.Args[1], os.Args[2])
		}
		if err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(boundedEnv); url != "" {
		if err := boundedMain(url, os.Args[1], os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "bounded:", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if url := os.Getenv(childEnv); url != "" {
		if err := childMain(url, os.Args[1], os.Args[2]); err != nil {
			fmt.Println("error", err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// monotonic is a clock that all processes of the machine share.
func monotonic() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// childMain holds a lock, or those of several keys with commas between them, and
// reports on standard output:
//
//	held TOKEN
//	ended LAST-VALID-NANOSECONDS CAUSE   (the lease was lost)
//
// It looks at its context all the time, so LAST is the last instant at which
// it believed in its lease. It ends when its input does.
func childMain(url, key, ttl string) error {
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
	lease, err := locks.LockAll(ctx, strings.Split(key, ","))
	if err != nil {
		return err
	}
	work, stop := context.WithCancel(lease.Context(ctx))
	defer stop()
	go func() {
		io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}()
	fmt.Println("held", lease.Token(lease.Keys()[0]))
	var last int64
	for {
		// The clock is read first: the belief lasted at least until then.
		now := monotonic()
		if lease.Err() != nil {
			break
		}
		last = now
	}
	<-work.Done()
	fmt.Println("ended", last, errors.Is(context.Cause(work), baton.ErrLost))
	select {} // and never unlocks
}

// child is a process that holds a lock.
type child struct {
	*exec.Cmd
	out *bufio.Reader
}

func startChild(t *testing.T, url, key string, ttl time.Duration) *child {
	t.Helper()
	c := &child{Cmd: exec.Command(os.Args[0], key, ttl.String())}
	c.Env = append(os.Environ(), childEnv+"="+url)
	c.Stderr = os.Stderr
	in, err := c.StdinPipe() // closed when this process ends, however
	if err != nil {
		t.Fatal(err)
	}
	out, err := c.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.out = bufio.NewReader(out)
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close()
		c.Process.Kill()
		c.Wait()
	})
	return c
}

// expect reads the next line, which begins with word.
func (c *child) expect(t *testing.T, word string) []string {
	t.Helper()
	line, err := c.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the child said %q, then %v; want %q", line, err, word)
	}
	fields := strings.Fields(line)
	if len(fields) == 0 || fields[0] != word {
		t.Fatalf("the child said %q, want %q", line, word)
	}
	return fields[1:]
}

func (c *child) signal(t *testing.T, s syscall.Signal) {
	t.Helper()
	if err := c.Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

func number(t *testing.T, s string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func openStore(t *testing.T, url string) driver.Store {
	t.Helper()
	store := mustOpen(t, url)
	t.Cleanup(func() { store.Close() })
	return store
}

// mustOpen opens a store that the test closes itself.
func mustOpen(t *testing.T, url string) driver.Store {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	store, err := open.Store(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func newLocker(t *testing.T, url string, cfg baton.Config) *baton.Locker {
	t.Helper()
	locks, err := baton.New(openStore(t, url), cfg)
	if err != nil {
		t.Fatal(err)
	}
	return locks
}
