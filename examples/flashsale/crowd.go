package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
)

// crowd is a sale of many items to many buyers at several counters. Each counter is a
// separate process, unless the store works in this process only.
type crowd struct {
	Items    int `json:"items"`
	Buyers   int `json:"buyers"`
	Counters int `json:"counters"`
}

// atOnce is how many buyers a counter serves at the same time.
const atOnce = 64

// crowdSale is the result.
type crowdSale struct {
	Sold     int           `json:"sold"`
	Left     int           `json:"left"` // according to the file
	Oversold bool          `json:"oversold"`
	Took     time.Duration `json:"tookNanoseconds"`
}

func (c crowd) right(s crowdSale) bool { return s.Sold == c.Items && s.Left == 0 }

// order is what a counter gets on its standard input, where no other process can read the
// password of the store.
type order struct {
	Store  string // URL; empty: without a lock
	Stock  stock
	Buyers int
}

// A counter says "ready" once its first buyer has read the stock or waits for the lock,
// and continues when it is told to. So the first buyers of all counters decide on the
// same stock, if nothing prevents them.
type counter struct {
	ready func()
	goOn  <-chan struct{}
}

// serve sells one item to each buyer, and returns how many got one.
func (k counter) serve(ctx context.Context, o order, locks func(baton.Config) (*baton.Locker, error)) (sold int, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	ready := sync.OnceFunc(k.ready)
	protect := unprotected
	if locks != nil {
		locker, err := locks(baton.Config{Events: &baton.Events{Waiting: func(_ context.Context, e baton.LockEvent) {
			if !e.Local { // otherwise another goroutine says so
				ready()
			}
		}}})
		if err != nil {
			return 0, err
		}
		protect = func(ctx context.Context, f func(context.Context) error) error {
			return locker.Do(ctx, "examples/flashsale/crowd", func(ctx context.Context, _ *baton.Lease) error { return f(ctx) })
		}
	}
	var buyer, happy atomic.Int64
	buy := func(ctx context.Context) error {
		left, err := o.Stock.read()
		if err != nil {
			return err
		}
		ready()
		if err := await(ctx, k.goOn); err != nil {
			return err
		}
		if left < 1 {
			return nil
		}
		happy.Add(1)
		return o.Stock.write(left - 1)
	}
	var all sync.WaitGroup
	for range atOnce {
		all.Go(func() {
			for buyer.Add(1) <= int64(o.Buyers) {
				if err := protect(ctx, buy); err != nil {
					cancel(err) // the first error is the cause
					return
				}
			}
		})
	}
	all.Wait()
	return int(happy.Load()), context.Cause(ctx)
}

// run holds the sale at counters that start makes, all at the same time.
func (c crowd) run(ctx context.Context, dir string, o order, start startCounter) (s crowdSale, err error) {
	o.Stock = stock(filepath.Join(dir, "stock"))
	if err := o.Stock.write(c.Items); err != nil {
		return s, err
	}
	began := time.Now()
	ctx, cancel := context.WithCancel(ctx)
	var handles []handle
	defer func() {
		cancel()
		for _, h := range handles {
			h.end()
		}
	}()
	for i := range c.Counters {
		o.Buyers = c.Buyers*(i+1)/c.Counters - c.Buyers*i/c.Counters
		h, err := start(ctx, o)
		if err != nil {
			return s, err
		}
		handles = append(handles, h)
	}
	for _, h := range handles {
		if err := h.ready(); err != nil {
			return s, err
		}
	}
	for _, h := range handles {
		if err := h.goOn(); err != nil {
			return s, err
		}
	}
	for _, h := range handles {
		sold, err := h.sold()
		if err != nil {
			return s, err
		}
		s.Sold += sold
	}
	s.Took = time.Since(began)
	s.Left, err = o.Stock.read()
	s.Oversold = s.Sold > c.Items
	return s, err
}

// startCounter starts a counter, which ends with ctx.
type startCounter func(ctx context.Context, o order) (handle, error)

// handle is how the sale controls a counter.
type handle struct {
	ready func() error // waits until the counter is ready
	goOn  func() error
	sold  func() (int, error) // waits until all buyers are served
	end   func()              // after ctx: waits until nothing of it is left
}

// inProcess makes counters that are goroutines. A nil store means no lock.
func inProcess(store driver.Locks) startCounter {
	var locks func(baton.Config) (*baton.Locker, error)
	if store != nil {
		locks = func(c baton.Config) (*baton.Locker, error) { return baton.New(store, c) }
	}
	return func(ctx context.Context, o order) (handle, error) {
		ready, goOn, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
		k := counter{ready: func() { close(ready) }, goOn: goOn}
		var sold int
		var err error
		go func() {
			defer close(done)
			sold, err = k.serve(ctx, o, locks)
		}()
		return handle{
			ready: func() error {
				select {
				case <-ready:
					return nil
				case <-done:
					return errors.Join(errors.New("a counter ended before it began"), err)
				}
			},
			goOn: func() error { close(goOn); return nil },
			sold: func() (int, error) { <-done; return sold, err },
			end:  func() { <-done },
		}, nil
	}
}

// workerEnv makes this program a counter.
const workerEnv = "BATON_FLASHSALE_COUNTER"

// word is a message of a counter: first that it is ready, and at the end what it has
// sold.
type word struct {
	Ready bool
	Sold  int
	Error string
}

// process starts a counter that is another process of this program.
func process(ctx context.Context, o order) (handle, error) {
	self, err := os.Executable()
	if err != nil {
		return handle{}, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), workerEnv+"=1")
	var complaints bytes.Buffer
	cmd.Stderr = &complaints
	in, err := cmd.StdinPipe()
	if err != nil {
		return handle{}, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return handle{}, err
	}
	if err := cmd.Start(); err != nil {
		return handle{}, err
	}
	wait := sync.OnceValue(cmd.Wait)
	said := json.NewDecoder(out)
	next := func() (w word, err error) {
		if err := said.Decode(&w); err != nil {
			return w, fmt.Errorf("a counter ended early: %w %s", errors.Join(err, wait()), complaints.String())
		}
		if w.Error != "" {
			return w, errors.New(w.Error)
		}
		return w, nil
	}
	return handle{
		ready: func() error {
			if err := json.NewEncoder(in).Encode(o); err != nil {
				return err
			}
			_, err := next()
			return err
		},
		goOn: func() error {
			_, err := io.WriteString(in, "\n")
			return err
		},
		sold: func() (int, error) {
			w, err := next()
			if err != nil {
				return 0, err
			}
			return w.Sold, wait()
		},
		end: func() { _ = wait() }, // ctx has killed it, or it has ended well
	}, nil
}

// work is the counter of such a process. It ends when its standard input ends.
func work(stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var o order
	if err := json.Unmarshal(line, &o); err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	goOn := make(chan struct{})
	go func() {
		if _, err := in.ReadBytes('\n'); err == nil {
			close(goOn)
			_, _ = in.ReadByte() // only the end can follow
		}
		cancel()
	}()

	var says sync.Mutex
	say := func(w word) error {
		says.Lock()
		defer says.Unlock()
		return json.NewEncoder(stdout).Encode(w)
	}
	k := counter{goOn: goOn, ready: func() {
		if say(word{Ready: true}) != nil {
			cancel() // the parent has ended
		}
	}}
	sold, err := k.serveFrom(ctx, o)
	if err != nil {
		return say(word{Error: err.Error()})
	}
	return say(word{Sold: sold})
}

func (k counter) serveFrom(ctx context.Context, o order) (int, error) {
	if o.Store == "" {
		return k.serve(ctx, o, nil)
	}
	dial, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	store, err := open.Store(dial, o.Store)
	if err != nil {
		return 0, err
	}
	defer store.Close()
	return k.serve(ctx, o, func(c baton.Config) (*baton.Locker, error) { return baton.New(store, c) })
}
