package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	mathrand "math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// hints wakes waiters. A grant is sent to the waiter's process by NOTIFY, in a
// transaction of its own after the commit: the server commits one transaction with a
// NOTIFY at a time, and a grant's commit waits for the disk. A process listens on one
// connection. While it cannot, it polls, in one statement for all its waiters.
type hints struct {
	store    *Store
	node     string // the channel of this process; "" if it cannot listen
	poll     time.Duration
	watchers sqlstore.Watchers

	waiting   atomic.Int64
	listening atomic.Bool
	kick      chan struct{} // there is a waiter, or this process no longer listens
	started   atomic.Bool

	mu      sync.Mutex
	ctx     context.Context
	cancel  context.CancelFunc
	wrong   context.CancelFunc // ends the connection that listens
	running sync.WaitGroup
	outbox  []message
	sending bool
	closed  bool
}

type message struct{ node, text string }

func (h *hints) init(s *Store, o options) {
	h.store, h.poll = s, o.poll
	if !s.pooled {
		h.node = "baton_" + strings.ToLower(rand.Text())
	}
	h.kick = make(chan struct{}, 1)
	h.ctx, h.cancel = context.WithCancel(context.Background())
	h.watchers.Changed = func(_, waiting int) {
		if h.waiting.Swap(int64(waiting)) == 0 && waiting > 0 {
			h.wakePoller()
		}
	}
}

func (h *hints) wakePoller() {
	select {
	case h.kick <- struct{}{}:
	default:
	}
}

// Watch implements driver.Watcher. Hints come from the server on one connection of this
// process. Without it, a statement looks for grants every few milliseconds while this
// process has waiters.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	s.hints.start()
	return s.hints.watchers.Watch(c, wake)
}

func (h *hints) start() {
	if h.started.Load() || h.started.Swap(true) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return
	}
	h.running.Go(h.pollAll)
	h.running.Go(func() { h.store.warm(h.ctx) })
	if h.node != "" {
		h.running.Go(h.listenAlways)
	}
}

// close waits briefly for hints to other processes.
func (h *hints) close() {
	h.mu.Lock()
	h.closed = true
	idle := !h.sending
	h.mu.Unlock()
	if idle {
		h.cancel()
	} else {
		time.AfterFunc(time.Second, h.cancel)
	}
	h.running.Wait()
	h.cancel()
}

// tell wakes the waiters that a function has granted, except except, which gets an
// answer.
func (h *hints) tell(key, granted, except string) {
	for _, f := range fields(granted) {
		if f[1] != except {
			h.send(f[0], key, f[1], grantOf(number(f[2]), number(f[3])))
		}
	}
}

// send delivers a hint to the watchers of the id, in this process or at the node.
func (h *hints) send(node, key, id string, hint driver.Hint) {
	if h.watchers.Deliver(key, id, hint) || node == "" || node == h.node {
		return
	}
	text := strings.Join([]string{
		id, strconv.FormatInt(hint.Grant.Token, 10), strconv.FormatInt(hint.Grant.TTL.Microseconds(), 10), key,
	}, " ")
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.outbox = append(h.outbox, message{node, text}); !h.sending && !h.closed {
		h.sending = true
		h.running.Go(h.deliver)
	}
}

// deliver sends the queued hints, many in one statement. A failed hint is not repeated.
func (h *hints) deliver() {
	const sql = `SELECT set_config('synchronous_commit', 'off', true), pg_notify(n, t)
		FROM unnest($1::text[], $2::text[]) AS u (n, t)`
	for {
		h.mu.Lock()
		batch := h.outbox
		h.outbox = nil
		if len(batch) == 0 {
			h.sending = false
			if h.closed {
				h.cancel()
			}
			h.mu.Unlock()
			return
		}
		h.mu.Unlock()
		nodes, texts := make([]string, len(batch)), make([]string, len(batch))
		for i, m := range batch {
			nodes[i], texts[i] = m.node, m.text
		}
		ctx, cancel := context.WithTimeout(h.ctx, time.Second)
		h.tellServer(ctx, sql, nodes, texts)
		cancel()
	}
}

// tellServer works after Close, too.
func (h *hints) tellServer(ctx context.Context, sql string, args ...any) {
	if h.store.pooled {
		args = append([]any{pgx.QueryExecModeExec}, args...)
	}
	_, _ = h.store.pool.Exec(ctx, sql, args...) // errors do not matter: it is a hint
}

// Pauses between two attempts to listen.
const (
	minPause = 20 * time.Millisecond
	maxPause = 2 * time.Second
)

func (h *hints) listenAlways() {
	pause := minPause
	for h.ctx.Err() == nil {
		if h.listen() {
			pause = minPause
		}
		h.listening.Store(false)
		h.wakePoller()
		select {
		case <-h.ctx.Done():
		case <-time.After(pause/2 + mathrand.N(pause/2)): // jitter, so that processes do not reconnect at once
		}
		pause = min(2*pause, maxPause)
	}
}

// How long to listen until the connection must show that it works, and how long that may
// take.
const (
	quiet = 10 * time.Second
	proof = 5 * time.Second
)

// listen receives on one connection until it breaks, and reports whether it ever worked.
func (h *hints) listen() (worked bool) {
	ctx, cancel := context.WithTimeout(h.ctx, 10*time.Second)
	defer cancel()
	pooled, err := h.store.pool.Acquire(ctx)
	if err != nil {
		return false
	}
	conn := pooled.Hijack() // the pool opens another one for it
	defer func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		_ = conn.Close(ctx)
	}()
	if _, err := conn.Exec(ctx, `LISTEN `+h.node); err != nil {
		return false
	}
	life, leave := context.WithCancel(h.ctx)
	defer leave()
	h.mu.Lock()
	h.wrong = leave
	h.mu.Unlock()
	h.listening.Store(true)
	h.watchers.Nudge() // earlier hints were missed
	for {
		ctx, cancel := context.WithTimeout(life, quiet)
		n, err := conn.WaitForNotification(ctx)
		silent := ctx.Err() != nil
		cancel()
		switch {
		case err == nil:
			h.receive(n.Payload)
		case life.Err() != nil:
			return true
		case silent && errors.Is(err, context.DeadlineExceeded) && !conn.IsClosed():
			ctx, cancel := context.WithTimeout(life, proof)
			err := conn.Ping(ctx)
			cancel()
			if err != nil {
				return true
			}
		default:
			return true
		}
	}
}

// leave makes the process listen on another connection: this one leads to the wrong
// server.
func (h *hints) leave() {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.wrong != nil {
		h.wrong()
	}
}

// receive parses the text that send wrote.
func (h *hints) receive(text string) {
	f := strings.SplitN(text, " ", 4)
	if len(f) != 4 {
		return
	}
	var hint driver.Hint
	if token, ttl := number(f[1]), number(f[2]); token > 0 {
		hint = grantOf(token, ttl)
	}
	h.watchers.Deliver(f[3], f[0], hint)
}

// pollAll looks for grants while this process has waiters and does not listen.
func (h *hints) pollAll() {
	for {
		select {
		case <-h.ctx.Done():
			return
		case <-h.kick:
		}
		pause := h.poll
		for h.waiting.Load() > 0 && !h.listening.Load() {
			select {
			case <-h.ctx.Done():
				return
			case <-time.After(pause):
			}
			if h.pollOnce() {
				pause = h.poll
			} else {
				pause = min(pause*5/4, 10*h.poll)
			}
		}
	}
}

// pollOnce wakes the waiters that were granted and reports whether there were any.
func (h *hints) pollOnce() (found bool) {
	const sql = `SELECT u.i, c.ttl FROM unnest($1::bytea[], $2::text[], $3::bigint[]) WITH ORDINALITY AS u (k, id, seq, i)
		JOIN baton_claim c ON c.k = u.k AND c.seq = u.seq AND c.id = u.id WHERE c.held`
	positions := h.watchers.Positions()
	if len(positions) == 0 {
		return false
	}
	keys, ids, seqs := columns(positions)
	ctx, cancel := context.WithTimeout(h.ctx, 5*time.Second)
	defer cancel()
	type granted struct{ I, TTL int64 }
	var all []granted
	err := h.store.ask(ctx, sql, []any{keys, ids, seqs}, func(rows pgx.Rows) (err error) {
		all, err = pgx.CollectRows(rows, pgx.RowToStructByPos[granted])
		return err
	})
	if err != nil {
		return false
	}
	for _, g := range all {
		p := positions[g.I-1]
		h.watchers.Deliver(p.Key, p.ID, grantOf(p.Seq, g.TTL))
	}
	return len(all) > 0
}
