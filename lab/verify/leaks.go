package verify

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/history"
)

// What is left at the end counts against promise L: goroutines and descriptors of clients,
// connections, locks, and keys of servers. Leftovers of killed clients are not checked: the
// system frees their resources, and the store their keys when they expire.

// gone repeats look until nothing is left, within a time. It returns the result of the last
// complete look, or the error if no look was complete.
func (t *trial) gone(ctx context.Context, look func(context.Context) ([]string, error)) (left []string, err error) {
	ctx, cancel := within(ctx, t.cfg.TTL+t.bound+2*time.Second)
	defer cancel()
	looked := false
	for {
		seen, failed := look(ctx)
		switch {
		case failed == nil && len(seen) == 0:
			return nil, nil
		case failed == nil:
			left, looked = seen, true
		default:
			err = failed
		}
		if ctx.Err() != nil {
			break
		}
		sleep(ctx, 50*time.Millisecond)
	}
	if looked {
		return left, nil
	}
	return nil, err
}

// leak makes a violation of each leftover.
func leak(name string, from int64, left []string, text string) (found []check.Violation) {
	now := history.Now()
	for _, x := range left {
		found = append(found, check.Violation{
			Promise: check.Lively, Check: name, Key: x, From: from, To: now,
			Text: fmt.Sprintf(text, history.Duration(from, now).Round(time.Millisecond)),
		})
	}
	return found
}

// connections looks for open connections of clients that have closed the store. The client
// processes stay until then.
func (t *trial) connections(ctx context.Context) []check.Violation {
	from := history.Now()
	left, _ := t.gone(ctx, func(context.Context) (open []string, err error) { // a look never fails
		for n, p := range t.seats {
			for _, x := range t.wires(n) {
				if conns := x.Conns(); conns > 0 {
					open = append(open, fmt.Sprintf("client %d, %d to %s", p.now().client, conns, x.Addr))
				}
			}
		}
		return open, nil
	})
	return leak("connections", from, left, "connections are still open, %v after the client has closed the store")
}

// locksLeft looks for locks in the store, and removes them.
func (t *trial) locksLeft(ctx context.Context) []check.Violation {
	in, ok := t.store.(driver.Inspector)
	if !ok || t.place.direct == "" {
		return nil
	}
	t.progress("looking what is left in the store")
	from := history.Now()
	left, err := t.gone(ctx, func(ctx context.Context) ([]string, error) { return listed(ctx, in, t.prefix) })
	if err != nil {
		t.result.invalid("what is left in the store could not be looked at: %v", err)
	}
	if len(left) > 0 {
		t.sweep()
	}
	return leak("leaks", from, left, "the lock is still held or waited for, %v after the last client has ended")
}

func listed(ctx context.Context, in driver.Inspector, prefix string) (keys []string, err error) {
	for info, err := range in.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		keys = append(keys, info.Key)
	}
	return keys, nil
}

// keysLeft looks for all keys on servers that Run started, without using the store. It reports
// each once.
func (t *trial) keysLeft(ctx context.Context) []check.Violation {
	if t.place.servers == nil {
		return nil
	}
	from := history.Now()
	left, err := t.gone(ctx, func(context.Context) ([]string, error) {
		keys, err := t.place.servers.Held()
		return slices.DeleteFunc(keys, func(k string) bool { return slices.Contains(t.told, k) }), err
	})
	if err != nil {
		t.result.invalid("what is left on the servers could not be looked at: %v", err)
	}
	t.told = append(t.told, left...)
	return leak("keys", from, left, "the servers still have it, %v after the last client has ended")
}

// countRows counts the rows of the servers before the clients begin.
func (t *trial) countRows() (err error) {
	if t.place.servers != nil {
		t.rows, err = t.place.servers.Keys()
	}
	return err
}

// The rows that a store may keep for a while, for each key and for a run.
const (
	rowsOfKey = 8
	rowsOfRun = 100
)

// A store remembers each request that waits for a turn for a minute, for repetitions of the
// request.
const rowsOfWait = time.Minute + 10*time.Second

// waits counts these requests.
func (t *trial) waits() (n int, err error) {
	files, err := filepath.Glob(t.path("client-*.history"))
	if err != nil {
		return 0, err
	}
	var h history.History
	for _, file := range files {
		if err := read(&h, file); err != nil {
			return 0, err
		}
	}
	since := history.Now() - int64(rowsOfWait)
	for i := range h.Decisions {
		if d := &h.Decisions[i]; d.Waits && d.Called >= since {
			n++
		}
	}
	return n, nil
}

// rowsLeft checks that servers that Run started keep no more rows than a store may for each
// key: not a row for each request, for example. It looks before the clients close.
func (t *trial) rowsLeft(ctx context.Context) []check.Violation {
	if t.place.servers == nil {
		return nil
	}
	keys := t.plan.keys + len(t.plan.permits) + len(limitRules) + batchKeys + len(t.seats)
	waits, err := t.waits()
	if err != nil {
		t.result.invalid("the waits for limits could not be counted: %v", err)
	}
	most := keys*rowsOfKey + rowsOfRun + waits
	from := history.Now()
	left, err := t.gone(ctx, func(context.Context) ([]string, error) {
		n, err := t.place.servers.Keys()
		if n -= t.rows; n <= most || err != nil {
			return nil, err
		}
		return []string{fmt.Sprintf("%d rows of %d keys", n, keys)}, nil
	})
	if err != nil {
		t.result.invalid("the rows on the servers could not be counted: %v", err)
	}
	return leak("rows", from, left, fmt.Sprintf("more than the %d that may be there", most)+" stay behind, for %v")
}

// sweep removes locks from the store within a short time. The rest expires.
func (t *trial) sweep() {
	in, ok := t.store.(driver.Inspector)
	if !ok || t.place.direct == "" {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	left, err := listed(ctx, in, t.prefix)
	if err != nil {
		return
	}
	for _, key := range left {
		// The waiters of the key died, and the store would grant the lock to them.
		for range maxSweeps {
			if n, err := in.Break(ctx, key); err != nil || n == 0 {
				break
			}
		}
	}
}

// maxSweeps bounds the number of dead waiters that are removed one by one.
const maxSweeps = MaxClients * 16

// descriptors are the open descriptors of this process: number and target. The result is
// empty on a system without /proc.
func descriptors() map[string]bool {
	const dir = "/proc/self/fd"
	files, _ := os.ReadDir(dir) // none if the system has no such folder
	open := make(map[string]bool)
	for _, f := range files {
		target, err := os.Readlink(filepath.Join(dir, f.Name()))
		switch {
		case err != nil: // the descriptor of the folder itself
		case target == "anon_inode:[eventpoll]", target == "anon_inode:[eventfd]": // Go opens them at the first connection
		default:
			open[f.Name()+" "+target] = true
		}
	}
	return open
}

// lasting repeats look until nothing is left, or until end, and returns the result of the last
// look. After a look that finds nothing, a later finding is not left over: it is, for example,
// the goroutine of a timer.
func lasting[T comparable](end time.Time, look func() T) (left T) {
	var nothing T
	for left = look(); left != nothing && time.Now().Before(end); left = look() {
		time.Sleep(10 * time.Millisecond) // no event reports it
	}
	return left
}

// opened describes the descriptors that are open now and were not in before.
func opened(before map[string]bool) string {
	var left []string
	for d := range descriptors() {
		if !before[d] {
			left = append(left, d)
		}
	}
	slices.Sort(left)
	return strings.Join(left, ", ")
}
