package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/agent"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/server"
)

// A front is an agent or a server between clients and the store. It is a fault.Process.
type front struct {
	trial  *trial
	name   string
	orders frontOrders

	mu    sync.Mutex
	lives int
	life  *life
}

// frontOrders are a front's orders at its start.
type frontOrders struct {
	Way    string        `json:"way"`
	URL    string        `json:"url"`
	TTL    time.Duration `json:"ttl"`
	Listen string        `json:"listen"` // the path of a socket, or an address
	Secret []byte        `json:"secret,omitempty"`
	Defect string        `json:"defect,omitempty"` // planted by tests
}

// start begins a new life, and returns when it serves.
func (f *front) start() error {
	cmd, err := again(roleFront)
	if err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.lives++
	log := f.trial.path(fmt.Sprintf("client-%s.%d.log", strings.ReplaceAll(f.name, " ", "-"), f.lives))
	if f.life, err = begin(cmd, f.name, log, f.orders); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*openTimeout)
	defer cancel()
	return f.life.await(ctx, sayReady, 1)
}

func (f *front) now() *life {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.life
}

// address is where it listens.
func (f *front) address() string {
	l := f.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.words {
		if w.Say == sayReady {
			return w.Text
		}
	}
	return ""
}

// Signal is fault.Process's.
func (f *front) Signal(s os.Signal) error {
	l := f.now()
	if s == syscall.SIGKILL {
		l.end()
		return nil
	}
	if err := l.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: %w%s", f.name, err, l.tail())
	}
	return nil
}

// Revive is fault.Process's.
func (f *front) Revive() error {
	if err := f.start(); err != nil {
		return err
	}
	f.trial.retarget(f)
	return nil
}

// frontPatience bounds the time in which an agent or a server ends after its clients, on a
// busy machine.
const frontPatience = 15 * time.Second

// close ends the front, and reports whether it ended by itself.
func (f *front) close() bool {
	l := f.now()
	if l == nil {
		return true
	}
	_ = l.in.Close() // an error means that it has ended
	slow := time.NewTimer(frontPatience)
	defer slow.Stop()
	select {
	case <-l.ended:
		return true
	case <-slow.C:
		l.end()
		return false
	}
}

// plantConn adds a defect to the connections of an agent, in tests.
var plantConn = func(_ string, l net.Listener) net.Listener { return l }

// serveFront is the main function of a front. It ends with standard input.
func serveFront() error {
	in := bufio.NewReader(os.Stdin)
	var o frontOrders
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &o)
	}
	if err != nil {
		return fmt.Errorf("read the orders: %w", err)
	}
	opening, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	var store driver.Store
	if err := untilReached(opening, func() (err error) {
		store, err = openStore(opening, o.URL)
		return err
	}); err != nil {
		return err
	}
	defer store.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	go func() {
		_, _ = in.ReadByte() // no input but the end
		stop()
	}()
	if o.Way == WayAgent {
		return o.agent(ctx, plant(o.Defect, store), logger)
	}
	return o.serve(ctx, plant(o.Defect, store), logger)
}

func (o frontOrders) ready(l net.Listener) error {
	return json.NewEncoder(os.Stdout).Encode(word{sayReady, l.Addr().String()})
}

func (o frontOrders) agent(ctx context.Context, store driver.Store, logger *slog.Logger) error {
	locks, err := baton.New(store, baton.Config{TTL: o.TTL, Owner: "baton-lab verify, an agent", Logger: logger})
	if err != nil {
		return err
	}
	s, err := agent.New(locks, agent.Config{Logger: logger})
	if err != nil {
		return err
	}
	l, err := agent.Listen(o.Listen, 0o600)
	if err != nil {
		return err
	}
	defer l.Close()
	if err := o.ready(l); err != nil {
		return err
	}
	return s.Serve(ctx, plantConn(o.Defect, l))
}

func (o frontOrders) serve(ctx context.Context, store driver.Store, logger *slog.Logger) error {
	s, err := server.New(server.Config{Store: store, Secret: o.Secret, Logger: logger})
	if err != nil {
		return err
	}
	l, err := net.Listen("tcp", o.Listen)
	if err != nil {
		return err
	}
	h := server.HTTPServer(s.Handler())
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(l) }()
	if err := o.ready(l); err != nil {
		return err
	}
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	closing, cancel := context.WithTimeout(context.Background(), frontPatience/2)
	defer cancel()
	if err := s.Shutdown(closing); err != nil {
		return err
	}
	if err := h.Shutdown(closing); err != nil {
		return h.Close() // only connections of dead clients are left
	}
	return nil
}
