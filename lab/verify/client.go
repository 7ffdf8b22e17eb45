package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/history"
	"github.com/batonhq/baton/ratelimit"
)

// roleEnv has this program's role in a run.
const roleEnv = "BATON_VERIFY_ROLE"

const (
	roleClient = "client"
	roleFront  = "front"
)

// again is this program in another role.
func again(role string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	cmd.Env = append(os.Environ(), roleEnv+"="+role)
	return cmd, nil
}

// Main must be the first call of every program that calls Run: Run starts the program again
// for each client, agent and server, and in those Main does not return.
func Main() {
	switch os.Getenv(roleEnv) {
	case "":
		return
	case roleFront:
		if err := serveFront(); err != nil {
			_ = json.NewEncoder(os.Stdout).Encode(word{sayFailed, err.Error()}) // an error means that the conductor has ended
			os.Exit(1)
		}
		os.Exit(0)
	}
	c := &client{begin: make(chan struct{})}
	in := bufio.NewReader(os.Stdin)
	err := c.open(in)
	if err != nil {
		c.say(sayFailed, err.Error())
		os.Exit(1)
	}
	c.say(sayReady, "")
	go c.work()
	c.obey(in)
	os.Exit(0) // do not wait for working goroutines: the conductor no longer listens
}

// plant adds a defect to a store, in tests.
var plant = func(defect string, s driver.Store) driver.Store { return s }

// A client is a process that uses the store in many goroutines, and logs what it sees.
type client struct {
	orders
	log      *history.Log
	store    driver.Store
	traits   driver.Traits
	locks    *baton.Locker
	accounts accounts               // of locks
	limiters []*ratelimit.Limiter   // of limitRules
	looks    [][]*ratelimit.Limiter // other limits on the same keys
	batches  *ratelimit.Limiter
	running  int             // goroutines before the store was opened
	opened   map[string]bool // open before that

	begin   chan struct{} // closed when work begins
	workers sync.WaitGroup
	waiting context.Context // ends with doGiveUp
	giveUp  context.CancelFunc

	calm, stopNext atomic.Bool

	beginning sync.RWMutex // held for reading while something begins
	drain     bool         // guarded by beginning

	mu      sync.Mutex
	holding int
	restive int // goroutines that are still busy with operations from before the calm
	out     *json.Encoder
}

func (c *client) say(s say, text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sayLocked(s, text)
}

func (c *client) sayLocked(s say, text string) {
	if c.out == nil {
		c.out = json.NewEncoder(os.Stdout)
	}
	_ = c.out.Encode(word{s, text}) // if the conductor has ended, standard input ends, too
}

func (c *client) open(in *bufio.Reader) error {
	line, err := in.ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, &c.orders)
	}
	if err != nil {
		return fmt.Errorf("read the orders: %w", err)
	}
	// The goroutine that receives signals stays forever: start it before goroutines are
	// counted.
	heard := make(chan os.Signal, 1)
	signal.Notify(heard, fault.Continue)
	signal.Stop(heard)
	file, err := os.OpenFile(c.Log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	c.log = history.NewLog(file, c.Client)
	c.running, c.opened = runtime.NumGoroutine(), descriptors()
	ctx, cancel := context.WithTimeout(context.Background(), openTimeout)
	defer cancel()
	err = untilReached(ctx, func() (err error) {
		if c.Own {
			c.store, err = openOwn(ctx, c.URL, c.GoRedis)
		} else {
			c.store, err = openStore(ctx, c.URL)
		}
		return err
	})
	if err != nil {
		return err
	}
	c.store = plant(c.Defect, c.store)
	c.traits = c.store.Traits()
	c.locks, err = baton.New(c.store, baton.Config{
		TTL:    c.TTL,
		Owner:  fmt.Sprintf("baton-lab verify, client %d", c.Client),
		Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug})),
		Events: c.accounts.events(),
	})
	if err != nil {
		return err
	}
	if limits, ok := c.store.(limits.Store); ok {
		if err := c.openLimits(limits); err != nil {
			return err
		}
	}
	c.waiting, c.giveUp = context.WithCancel(context.Background())
	return nil
}

// openTimeout bounds the time to a store's first answer, on a busy machine.
const openTimeout = 30 * time.Second

// untilReached retries to open a store whose answers are lost: a new client may meet another
// fault.
func untilReached(ctx context.Context, open func() error) error {
	for {
		err := open()
		if err == nil || !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrUnknown) {
			return err
		}
		again := time.NewTimer(openAgain)
		select {
		case <-again.C:
		case <-ctx.Done():
			again.Stop()
			return err
		}
	}
}

// openAgain is the pause between these attempts.
const openAgain = 50 * time.Millisecond

// obey carries out orders until its input ends.
func (c *client) obey(in *bufio.Reader) {
	for {
		line, err := in.ReadBytes('\n')
		if err != nil {
			return
		}
		var o order
		if json.Unmarshal(line, &o) != nil {
			return
		}
		switch o.Do {
		case doBegin:
			close(c.begin)
		case doStop:
			c.stopNext.Store(true)
		case doNotStop:
			c.stopNext.Store(false)
			c.say(sayGoesOn, "")
		case doSuspend:
			bootclock.Suspend(o.For)
		case doCalm:
			c.mu.Lock()
			c.calm.Store(true)
			c.restive = c.Goroutines
			c.mu.Unlock()
		case doDrain:
			c.beginning.Lock()
			c.drain = true
			c.beginning.Unlock()
			c.say(sayDraining, "")
		case doGiveUp:
			c.giveUp()
		case doCount:
			go c.count()
		case doWeigh:
			go c.weigh()
		case doClose:
			go c.close()
		}
	}
}

func (c *client) work() {
	<-c.begin
	for n := range c.Goroutines {
		rng := rand.New(rand.NewPCG(c.Seed, uint64(c.Client)<<16|uint64(n)))
		w := &worker{client: c, rng: rng}
		c.workers.Go(w.run)
	}
	keeper := &worker{client: c, rng: rand.New(rand.NewPCG(c.Seed, uint64(c.Client)<<16|1<<14)), keeps: true}
	c.workers.Go(keeper.keep)
	c.call()
	c.workers.Wait()
	// Goroutines of their own report losses.
	if wrong := lasting(time.Now().Add(5*time.Second), c.accounts.wrong); wrong != "" {
		c.say(sayEvents, wrong+" do not agree")
	}
	c.say(sayTold, c.accounts.told().String())
	c.say(sayDrained, "")
}

// calmed is called by each goroutine once, after it has seen the calm.
func (c *client) calmed() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.restive--; c.restive == 0 {
		c.sayLocked(sayCalm, "")
	}
}

// holds changes the number of held locks.
func (c *client) holds(change int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	before := c.holding
	c.holding += change
	switch {
	case before == 0 && c.holding > 0:
		c.sayLocked(sayHolds, "")
	case before > 0 && c.holding == 0:
		c.sayLocked(sayFree, "")
	}
}

// stopHere stops this process until it gets SIGCONT.
func (c *client) stopHere() {
	again := make(chan os.Signal, 1)
	signal.Notify(again, fault.Continue)
	defer signal.Stop(again)
	c.say(sayStops, "")
	if fault.StopHere() == nil {
		<-again
	}
}

// close closes the store and looks for what it left.
func (c *client) close() {
	if err := c.store.Close(); err != nil {
		c.say(sayFailed, "close: "+err.Error())
	}
	if err := c.log.Err(); err != nil {
		c.say(sayFailed, "write the history: "+err.Error())
	}
	end := time.Now().Add(c.TTL + 5*time.Second) // goroutines end when the system lets them run
	if n := lasting(end, func() int {
		return max(0, runtime.NumGoroutine()-c.running-1) // minus this goroutine
	}); n > 0 {
		var b strings.Builder
		_ = pprof.Lookup("goroutine").WriteTo(&b, 1) // writing to a Builder never fails
		c.say(sayRunning, fmt.Sprintf("%d goroutines are left after Close:\n%s", n, b.String()))
	}
	if open := lasting(end, func() string { return opened(c.opened) }); open != "" {
		c.say(sayOpen, "descriptors are left after Close: "+open)
	}
	c.say(sayClosed, "")
}

// failed is the result of an attempt with an error of Lock or TryLock.
func failed(err error, waits bool) history.Result {
	full, _ := errors.AsType[*baton.QueueFullError](err)
	switch {
	case full != nil && full.Local: // the store was not asked
		return history.Failed
	case !waits && errors.Is(err, baton.ErrHeld): // a Lock that timed out returns it, too
		return history.Refused
	case !waits && errors.Is(err, baton.ErrUnavailable) && !errors.Is(err, baton.ErrUnknown):
		return history.Failed
	}
	return history.Unknown // an earlier attempt may have had no answer
}
