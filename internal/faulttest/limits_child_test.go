//go:build linux

package faulttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/rpc"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

const limitEnv = "BATON_FAULTTEST_LIMITS"

// An Asker is what a process of its own does about rate limits, as the test tells it by
// its standard input and output.
type Asker struct {
	store   open.LimitStore
	reports *os.File // a line for each yes, before anything else is asked
}

// limitMain serves until its input ends.
func limitMain(url string) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	store, err := open.Limits(ctx, url)
	cancel()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	s := rpc.NewServer()
	if err := s.Register(&Asker{store, os.NewFile(3, "reports")}); err != nil {
		panic(err)
	}
	s.ServeConn(struct {
		io.Reader
		io.WriteCloser
	}{os.Stdin, os.Stdout})
	os.Exit(0)
}

// TakeAnswer is what Take returns.
type TakeAnswer struct {
	Taken limits.Taken
	Clock *limits.ClockError // the one error that the contract looks into
}

// Take makes one request.
func (a *Asker) Take(r limits.Request, out *TakeAnswer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var err error
	if out.Taken, err = a.store.Take(ctx, r); errors.As(err, &out.Clock) {
		return nil
	}
	return err
}

// A Crowd is many callers that ask at once: one for each ID, or Callers without.
type Crowd struct {
	Request limits.Request
	Callers int
	IDs     []string
	Looks   bool // each looks before it asks
	Reports bool // as Asker.reports
}

// CrowdAnswer is which callers were allowed, by number, and which of them for the first
// time.
type CrowdAnswer struct{ Yes, Fresh []int }

// Ask has the callers of a crowd ask.
func (a *Asker) Ask(c Crowd, out *CrowdAnswer) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var mu sync.Mutex
	ask := func(i int) error {
		r := c.Request
		if c.Looks {
			r.Takes = append([]limits.Take(nil), r.Takes...)
			for i := range r.Takes {
				r.Takes[i].Cost = 0
			}
			if _, err := a.store.Take(ctx, r); err != nil {
				return err
			}
			r = c.Request
		}
		if c.IDs != nil {
			r.ID, r.Keep = c.IDs[i], time.Hour
		}
		d, err := a.store.Take(ctx, r)
		if err != nil || !d.OK {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if out.Yes = append(out.Yes, i); !d.Repeated {
			out.Fresh = append(out.Fresh, i)
		}
		if c.Reports {
			_, err = fmt.Fprintln(a.reports, i)
		}
		return err
	}
	return together(max(c.Callers, len(c.IDs)), ask)
}

// A Batch is many callers that ask one Limiter that takes batches.
type Batch struct {
	Key                           string
	N, Size, Processes, Overshoot int64
	Callers                       int
}

// AskInBatches says how many were allowed.
func (a *Asker) AskInBatches(b Batch, yes *int64) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	l, err := ratelimit.New(a.store, ratelimit.FixedWindow(b.N, 100_000*time.Hour), ratelimit.InBatches(b.Size, time.Hour, b.Processes, b.Overshoot))
	if err != nil {
		return err
	}
	var mu sync.Mutex
	return together(b.Callers, func(int) error {
		r, err := l.Allow(ctx, b.Key)
		mu.Lock()
		defer mu.Unlock()
		if r.OK {
			*yes++
		}
		return err
	})
}

// together calls f on n goroutines at once.
func together(n int, f func(i int) error) error {
	start, errs := make(chan struct{}), make([]error, n)
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			<-start
			errs[i] = f(i)
		})
	}
	close(start)
	wg.Wait()
	return errors.Join(errs...)
}

// asker is a process with an Asker. It is a limits.Store, too.
type asker struct {
	*rpc.Client
	cmd     *exec.Cmd
	reports *bufio.Reader
}

func startAsker(t testing.TB, url string) *asker {
	t.Helper()
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), limitEnv+"="+url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	check(err)
	out, err := cmd.StdoutPipe()
	check(err)
	r, w, err := os.Pipe()
	check(err)
	cmd.ExtraFiles = []*os.File{w}
	err = cmd.Start()
	w.Close()
	check(err)
	a := &asker{cmd: cmd, reports: bufio.NewReader(r)}
	a.Client = rpc.NewClient(struct {
		io.Reader
		io.WriteCloser
	}{out, in})
	t.Cleanup(func() {
		a.Close()
		cmd.Process.Kill()
		cmd.Wait()
		r.Close()
	})
	return a
}

// startAskers returns n processes that have opened the store.
func startAskers(t testing.TB, n int, url string) []*asker {
	t.Helper()
	all := make([]*asker, n)
	for i := range all {
		all[i] = startAsker(t, url)
	}
	look := limits.Request{Takes: []limits.Take{{Key: "hello", Limit: fiftyOfEach[0]}}}
	for _, a := range all {
		if _, err := a.Take(t.Context(), look); err != nil {
			t.Fatal(err)
		}
	}
	return all
}

// Take implements limits.Store. What is under way goes on if ctx ends.
func (a *asker) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	var answer TakeAnswer
	call := a.Go("Asker.Take", r, &answer, make(chan *rpc.Call, 1))
	select {
	case <-call.Done:
	case <-ctx.Done():
		return limits.Taken{}, ctx.Err()
	}
	if call.Error == nil && answer.Clock != nil {
		return limits.Taken{}, answer.Clock
	}
	return answer.Taken, call.Error
}

// reported reads which callers were allowed, up to most, or until the process has
// ended.
func (a *asker) reported(t *testing.T, most int) (yes []int) {
	t.Helper()
	for len(yes) < most {
		line, err := a.reports.ReadString('\n')
		if err != nil {
			return yes
		}
		i, err := strconv.Atoi(strings.TrimSpace(line))
		if err != nil {
			t.Fatal(err)
		}
		yes = append(yes, i)
	}
	return yes
}
