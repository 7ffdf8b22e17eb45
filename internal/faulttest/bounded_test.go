//go:build linux

package faulttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

const boundedEnv = "BATON_FAULTTEST_BOUNDED"

// A crowd at a bounded queue: two processes with ten lockers each, and ten callers for
// each locker.
const (
	boundedLockers = 10
	boundedCallers = 10
	boundedRounds  = 5
	boundedMost    = 3
)

// boundedMain is one of the processes. It reports on standard output:
//
//	done SERVED REFUSED-IN-THE-PROCESS REFUSED-IN-THE-STORE OVERLAPS
func boundedMain(url, key, file string) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	store, err := open.Store(ctx, url)
	if err != nil {
		return err
	}
	defer store.Close()
	var mu sync.Mutex
	var served, local, refused, overlaps int
	var failed error
	var wg sync.WaitGroup
	for range boundedLockers {
		locks, err := baton.New(store, baton.Config{})
		if err != nil {
			return err
		}
		for range boundedCallers {
			wg.Go(func() {
				for range boundedRounds {
					lease, err := locks.Lock(ctx, key, baton.MaxWaiting(boundedMost))
					inside := false
					if err == nil { // no other process has the file
						f, e := os.OpenFile(file, os.O_CREATE|os.O_EXCL, 0o600)
						if inside = e == nil; inside {
							f.Close()
							time.Sleep(time.Millisecond) // what the lock is held for
							e = os.Remove(file)
						}
						err = errors.Join(e, lease.Unlock())
					}
					full, isFull := errors.AsType[*baton.QueueFullError](err)
					mu.Lock()
					switch {
					case isFull && full.Local:
						local++
					case isFull:
						refused++
					case err != nil:
						failed = err
					default:
						served++
					}
					if lease != nil && !inside {
						overlaps++
					}
					mu.Unlock()
					if isFull {
						time.Sleep(2 * time.Millisecond) // callers come again
					}
				}
			})
		}
	}
	wg.Wait()
	fmt.Println("done", served, local, refused, overlaps)
	return failed
}

// Two hundred callers of two processes want one lock, and let at most three wait before
// them. Everyone gets an answer, never do more than three wait in the store, and nothing
// is left there.
func TestCrowdAtABoundedQueue(t *testing.T) {
	testserver.Long(t)
	oneByOne(t, func(t *testing.T, url string) {
		key, file := "bounded", t.TempDir()+"/inside"
		store := openStore(t, url)
		in, ok := driver.As[driver.Inspector](store)
		if !ok {
			t.Fatal("the store cannot be inspected")
		}
		var all []*child
		for range 2 {
			c := &child{Cmd: exec.Command(os.Args[0], key, file)}
			c.Env = append(os.Environ(), boundedEnv+"="+url)
			c.Stderr = os.Stderr
			out, err := c.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			c.out = bufio.NewReader(out)
			if err := c.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				c.Process.Kill()
				c.Wait()
			})
			all = append(all, c)
		}
		stop, looked := make(chan struct{}), make(chan int)
		go func() {
			most := 0
			defer func() { looked <- most }()
			for {
				select {
				case <-stop:
					return
				case <-time.After(5 * time.Millisecond):
				}
				if info, err := in.Inspect(context.Background(), key); err == nil {
					most = max(most, len(info.Waiters))
				}
			}
		}()
		var served, local, refused, overlaps int64
		for _, c := range all {
			n := c.expect(t, "done")
			served, local = served+number(t, n[0]), local+number(t, n[1])
			refused, overlaps = refused+number(t, n[2]), overlaps+number(t, n[3])
			if err := c.Wait(); err != nil {
				t.Errorf("a process ended with %v", err)
			}
		}
		close(stop)
		most := <-looked
		t.Logf("%d served, %d refused in their process, %d in the store; at most %d seen to wait there", served, local, refused, most)
		bounded := store.Traits().FIFO
		if total := int64(2 * boundedLockers * boundedCallers * boundedRounds); served+local+refused != total {
			t.Errorf("%d of %d calls were answered", served+local+refused, total)
		}
		if served == 0 || local == 0 || bounded && refused == 0 || overlaps > 0 {
			t.Errorf("%d overlaps", overlaps)
		}
		if bounded && most > boundedMost {
			t.Errorf("%d waited in the store, of at most %d", most, boundedMost)
		}
		info, err := in.Inspect(t.Context(), key)
		if err != nil || len(info.Holders)+len(info.Waiters) > 0 {
			t.Errorf("left in the store: %+v, %v", info, err)
		}
	})
}
