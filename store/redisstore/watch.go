package redisstore

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
)

// pushes passes the server's messages to the watchers.
type pushes struct {
	open func(ctx context.Context) // reads the channels until ctx ends

	watchers [16]watcherShard // sharded because every attempt watches
	started  atomic.Bool      // saves start the mutex
	refused  atomic.Bool      // the server denies reading the channels
	missed   atomic.Int32     // grants found without a message since the last message

	mu     sync.Mutex
	cancel context.CancelFunc // not nil once started
	done   chan struct{}
	closed bool
}

type watcherShard struct {
	mu   sync.Mutex
	byID map[string][]*watcher
}

type watcher struct {
	wake    func(driver.Hint)
	waiting atomic.Bool // its claim has a position, and is not known to be granted
	alone   [1]*watcher // this watcher: the slice in byID while it is the only one of its ID
}

// shard has the watchers of an ID. IDs are random.
func (p *pushes) shard(id string) *watcherShard {
	n := len(id)
	if n > 0 {
		n = int(id[n-1])
	}
	return &p.watchers[n%len(p.watchers)]
}

// Watch implements driver.Watcher. It calls wake when the server has granted c from the
// queue and when Break has revoked it. While c waits, Watch also calls wake after each
// reconnection, because messages may have been missed. It does not wake holders then:
// there may be very many, and the next renewal finds a missed message's cause.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	s.pushes.start()
	return s.pushes.add(c.ID, wake)
}

func (p *pushes) add(id string, wake func(driver.Hint)) (stop func()) {
	w := &watcher{wake: wake}
	w.alone[0] = w
	sh := p.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if sh.byID == nil {
		sh.byID = map[string][]*watcher{}
	}
	if all := sh.byID[id]; all == nil {
		sh.byID[id] = w.alone[:]
	} else {
		sh.byID[id] = append(append([]*watcher(nil), all...), w)
	}
	return func() { sh.remove(id, w) }
}

func (sh *watcherShard) remove(id string, w *watcher) {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	all := sh.byID[id]
	if len(all) == 1 && all[0] == w {
		delete(sh.byID, id)
		return
	}
	for i, other := range all {
		if other == w {
			// A new slice: deliver may be reading the old one.
			sh.byID[id] = append(append([]*watcher(nil), all[:i]...), all[i+1:]...)
			return
		}
	}
}

// start opens the connection, once. No caller waits for it: a waiter that is granted
// earlier finds its grant when it renews its position.
func (p *pushes) start() {
	if p.started.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cancel != nil || p.closed {
		return
	}
	ctx, cancel := context.WithCancel(context.Background())
	p.cancel, p.done = cancel, make(chan struct{})
	p.started.Store(true)
	go func() {
		defer close(p.done)
		p.open(ctx)
	}()
}

func (p *pushes) close() {
	p.mu.Lock()
	cancel, done := p.cancel, p.done
	p.closed = true
	p.mu.Unlock()
	if cancel != nil {
		cancel()
		<-done
	}
}

func (p *pushes) deliver(id string, h driver.Hint) {
	sh := p.shard(id)
	sh.mu.Lock()
	all := sh.byID[id]
	sh.mu.Unlock()
	for _, w := range all {
		if h.Granted {
			w.waiting.Store(false)
		}
		w.wake(h)
	}
}

// deafAfter is the number of grants in a row without a message after which the store
// expects none.
const deafAfter = 3

// deaf reports whether messages of grants do not arrive: this user, or the users of other
// programs, may lack the rights to the channels. Then waiters have to poll often.
func (p *pushes) deaf() bool { return p.refused.Load() || p.missed.Load() >= deafAfter }

func (p *pushes) waits(id string, waiting bool) {
	sh := p.shard(id)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	for _, w := range sh.byID[id] {
		w.waiting.Store(waiting)
	}
}

func (p *pushes) wakeWaiters() {
	var all []*watcher
	for i := range p.watchers {
		sh := &p.watchers[i]
		sh.mu.Lock()
		for _, ws := range sh.byID {
			all = append(all, ws...)
		}
		sh.mu.Unlock()
	}
	for _, w := range all {
		if w.waiting.Load() {
			w.wake(driver.Hint{})
		}
	}
}

// subscribe reads the channels until ctx ends, on one connection after the other.
func (s *Store) subscribe(ctx context.Context) {
	pause := minPause
	for ctx.Err() == nil {
		err := s.client.Subscribe(ctx, []string{s.channel, s.everyone},
			func() {
				pause = minPause
				s.pushes.refused.Store(false)
				s.pushes.wakeWaiters()
			},
			s.receive)
		if refused := denied(err); refused {
			s.pushes.refused.Store(true)
			pause = refusedPause
		} else if pause == refusedPause {
			pause = minPause
		}
		select {
		case <-ctx.Done():
		case <-time.After(pause/2 + rand.N(pause/2)): // jitter, so that processes do not reconnect at once
		}
		pause = min(2*pause, max(pause, maxPause))
	}
}

const (
	minPause = 20 * time.Millisecond
	maxPause = 2 * time.Second

	// refusedPause passes before another try after a denial.
	refusedPause = 20 * time.Second
)

// receive parses a message: "g", ID, token and ms of a grant, or "l" and the ID of a lost
// claim.
func (s *Store) receive(message string) {
	parts := strings.Split(message, "\t")
	switch {
	case len(parts) == 4 && parts[0] == "g":
		s.pushes.missed.Store(0)
		token, ms := number(parts[2]), number(parts[3])
		if token > 0 && ms > 0 && s.replicas.want != NoReplicas {
			// The replicas may not have the grant yet. The waiter's next request waits
			// for their acknowledgement.
			s.pushes.deliver(parts[1], driver.Hint{})
		} else if token > 0 && ms > 0 {
			s.pushes.deliver(parts[1], driver.Hint{Granted: true, Grant: grant(token, time.Duration(ms)*time.Millisecond)})
		}
	case len(parts) == 2 && parts[0] == "l":
		s.pushes.deliver(parts[1], driver.Hint{})
	}
}
