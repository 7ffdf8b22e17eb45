// Package batch sends requests to a store: at once while few sends are under way,
// otherwise in batches of those that have gathered meanwhile. For a server or a disk, one
// more request in a send usually costs far less than one more send.
//
// A request that finds no send under way can go on its caller's goroutine: a switch to
// another goroutine takes a large part of the time that a near server needs.
//
// A caller may leave when its context ends. A request that was not sent by then never is.
// A sent request continues without its caller: the send belongs to all its callers, so no
// single caller's context ends it. With a grace, a send ends when all its callers have
// left.
package batch

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
)

// A Rule restricts how requests with the same key are sent. A key may have several rules.
type Rule uint8

const (
	// Once: two such requests never share a send.
	Once Rule = 1 << iota

	// Serial: two such requests are never in different sends that are under way at the
	// same time.
	Serial

	// Order: such a request is never sent before an earlier one.
	Order
)

// A Key may be common to several requests. Its Rule is the same in all of them.
type Key struct {
	Name string
	Rule Rule
}

// ErrImpatient says that a request waited too long and was not sent.
var ErrImpatient = errors.New("the request was not sent in time")

// A Request is a pointer to a struct that embeds Item and has room for the answer, which
// is set when the item is done.
type Request interface{ item() *Item }

// An Item is the Batcher's part of a request. NewItem makes one. A request is sent once,
// by one Batcher.
type Item struct {
	keys     []Key
	size     int
	flight   *flight // its send; set before that begins, under Batcher.mu
	err      error   // why it was not sent; set before done is closed
	finished atomic.Bool
	parted   atomic.Bool // no caller waits for the answer any more
	done     chan struct{}
}

func NewItem() Item { return Item{done: make(chan struct{})} }

func (i *Item) item() *Item { return i }

// Done is closed when the request has its answer, or will never be sent.
func (i *Item) Done() <-chan struct{} { return i.done }

// Finish marks the request as answered. A Config's Send may call it before it returns,
// when other requests in the send take longer. Further calls have no effect.
func (i *Item) Finish() {
	if i.finished.CompareAndSwap(false, true) {
		close(i.done)
		i.part()
	}
}

// part notes that no caller waits for the item any more. If it was the last item of its
// send, it ends the send's context, with flight.leave.
func (i *Item) part() {
	f := i.flight
	if f != nil && i.parted.CompareAndSwap(false, true) && f.waits.Add(-1) == 0 && f.leave {
		f.cancel()
	}
}

// A flight is one send.
type flight struct {
	items  []*Item
	waits  atomic.Int32 // items with a waiting caller
	leave  bool         // the context ends when waits becomes 0
	ctx    context.Context
	cancel context.CancelFunc
}

// A Config is what a Batcher sends, and how. Send or Begin, Max and InFlight are
// required.
type Config[R Request] struct {
	// Send performs requests, and sets their answers before it returns.
	Send func(context.Context, []R)

	// Begin, in place of Send, waits for what a send needs, such as a connection, and
	// returns the send. The Batcher takes requests only then: until then callers may
	// leave, perhaps all, and more requests join. An error is that of the requests that
	// would have been sent.
	Begin func(context.Context) (send func(context.Context, []R), err error)

	// Direct sends a request on its caller's goroutine if it can be sent at once. Begin
	// then gets the caller's context; that of the send also ends Grace after it, and Do
	// returns with the send. With both Begin and Send, Send sends it, in the caller's
	// context.
	Direct bool

	Max      int // requests in one send
	InFlight int // concurrent sends

	// Go runs a function on another goroutine. Defaults to a go statement.
	Go func(func())

	// Context ends all sends. Defaults to no end.
	Context context.Context

	// Timeout bounds one send. Defaults to no bound.
	Timeout time.Duration

	// Grace is how long a caller whose context has ended still waits for the answer to a
	// sent request. When the last caller has left a send, the context of the send ends.
	// By default callers leave at once and the context does not end.
	Grace time.Duration

	// Yield lets other goroutines run between two sends: callers that were just answered
	// often ask again, and join the next send.
	Yield bool

	// Stuck is how long a send counts for InFlight. After that another send may begin.
	// Defaults to no bound.
	Stuck time.Duration

	// Keys are the keys of a request. Defaults to none.
	Keys func(R) []Key

	// Patience is how long a request waits to be sent; then its error is ErrImpatient. By
	// default it waits until its context ends.
	Patience time.Duration

	// Kind separates requests that never share a send. Defaults to one kind.
	Kind func(R) any

	// MaxSize bounds the sum of the Sizes in a send of several requests. Defaults to no
	// bound.
	Size    func(R) int
	MaxSize int

	// MaxKeys bounds the different keys in a send of several requests. Defaults to no
	// bound.
	MaxKeys int
}

// A Batcher sends requests. Its methods are safe for concurrent use. It need not be
// closed: it has no goroutine when no send is under way.
type Batcher[R Request] struct {
	config Config[R]

	mu     sync.Mutex
	landed sync.Cond // flying has become 0
	queue  []R
	flying int            // sends that have begun, or will as soon as they can
	begun  int            // those of flying that have not taken requests yet
	held   map[string]int // for each Serial key: the number of its requests under way
	paused bool
	closed bool
}

func New[R Request](c Config[R]) *Batcher[R] {
	if c.Go == nil {
		c.Go = func(f func()) { go f() }
	}
	if c.Context == nil {
		c.Context = context.Background()
	}
	b := &Batcher[R]{config: c, held: map[string]int{}}
	b.landed.L = &b.mu
	return b
}

// Do sends r and waits for its answer. If ctx ends first and r was not sent, r never will
// be, and the error is that of ctx. If r was sent, the error is also driver.ErrUnknown,
// and r.Done is closed when the answer is there. If r was not sent because of Close, the
// error is driver.ErrClosed.
func (b *Batcher[R]) Do(ctx context.Context, r R) error {
	it := r.item()
	if err := ctx.Err(); err != nil {
		it.Finish()
		return err
	}
	if b.config.Keys != nil {
		it.keys = b.config.Keys(r)
	}
	if b.config.Size != nil {
		it.size = b.config.Size(r)
	}
	b.mu.Lock()
	switch {
	case b.closed:
		it.refuse(driver.ErrClosed)
	case b.config.Direct && b.flying < b.config.InFlight && len(b.queue) == 0 && !b.paused && !b.blockedLocked(it):
		f := b.boardLocked([]R{r})
		b.flying++
		b.mu.Unlock()
		return b.flyHere(ctx, r, f)
	default:
		b.queue = append(b.queue, r)
		if !b.keptLocked(it) {
			b.launchLocked()
		}
	}
	b.mu.Unlock()
	var impatient <-chan time.Time
	if b.config.Patience > 0 {
		timer := time.NewTimer(b.config.Patience)
		defer timer.Stop()
		impatient = timer.C
	}
	for done := false; !done; {
		select {
		case <-it.done:
			return it.err
		case <-ctx.Done():
			done = true
		case <-impatient:
			if b.withdraw(it) {
				return ErrImpatient
			}
		}
	}
	if b.withdraw(it) {
		return ctx.Err()
	}
	if b.config.Grace > 0 {
		timer := time.NewTimer(b.config.Grace)
		defer timer.Stop()
		select {
		case <-it.done:
		case <-timer.C:
		}
	}
	if b.leave(it) {
		return fmt.Errorf("%w: %w", driver.ErrUnknown, ctx.Err())
	}
	return it.err
}

// refuse ends an item that will not be sent.
func (i *Item) refuse(err error) {
	i.err = err
	i.Finish()
}

// withdraw removes an item from the queue and reports whether it was there.
func (b *Batcher[R]) withdraw(it *Item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if it.flight != nil {
		return false
	}
	b.queue = slices.DeleteFunc(b.queue, func(o R) bool { return o.item() == it })
	it.Finish()
	if !b.keptLocked(it) {
		b.launchLocked() // the item may have kept others back
	}
	return true
}

// keptLocked reports whether a send under way has each key of an item.
func (b *Batcher[R]) keptLocked(it *Item) bool {
	return len(it.keys) > 0 && !slices.ContainsFunc(it.keys, func(k Key) bool { return k.Rule&Serial == 0 || b.held[k.Name] == 0 })
}

// blockedLocked reports whether a send under way has some key of an item.
func (b *Batcher[R]) blockedLocked(it *Item) bool {
	return slices.ContainsFunc(it.keys, func(k Key) bool { return k.Rule&Serial != 0 && b.held[k.Name] > 0 })
}

// leave notes that the caller of a sent item no longer waits. It returns false if the
// item is done.
func (b *Batcher[R]) leave(it *Item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if it.finished.Load() { // it has just finished
		return false
	}
	it.part()
	return true
}

// Close stops sending: Do returns driver.ErrClosed for waiting and later requests. Sends
// under way continue. Go is not called any more.
func (b *Batcher[R]) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, r := range b.queue {
		r.item().refuse(driver.ErrClosed)
	}
	b.queue = nil
}

func (b *Batcher[R]) Wait() {
	b.mu.Lock()
	defer b.mu.Unlock()
	for b.flying > 0 {
		b.landed.Wait()
	}
}

func (b *Batcher[R]) landLocked() {
	if b.flying--; b.flying == 0 {
		b.landed.Broadcast()
	}
}

// Waiting is the number of requests that were not sent yet.
func (b *Batcher[R]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// Pause stops sending until resume is called, so that a test can decide which requests
// share a send. Sends under way continue.
func (b *Batcher[R]) Pause() (resume func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.paused = true
	return func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.paused = false
		b.launchLocked()
	}
}

func (b *Batcher[R]) launchLocked() {
	for b.flying < b.config.InFlight {
		batch, f, ok := b.nextLocked()
		if !ok {
			return
		}
		b.flying++
		b.config.Go(func() { b.fly(batch, f) })
	}
}

// nextLocked reports whether another send can begin. It takes the requests unless the
// send has a Begin.
func (b *Batcher[R]) nextLocked() (batch []R, f *flight, ok bool) {
	if b.config.Begin == nil {
		batch, f = b.takeLocked()
		return batch, f, f != nil
	}
	if b.paused || len(b.queue) <= b.begun*b.config.Max {
		return nil, nil, false
	}
	t := taking[R]{alone: len(b.queue) == 1}
	if !slices.ContainsFunc(b.queue, func(r R) bool { return t.add(b, r) }) {
		return nil, nil, false
	}
	b.begun++
	return nil, nil, true
}

// fly sends until no request waits.
func (b *Batcher[R]) fly(batch []R, f *flight) {
	counted := true // in b.flying; the timer of a send may be late, and count for the next one
	for more := true; more; {
		send := b.config.Send
		if b.config.Begin != nil {
			send, batch, f = b.begin()
		}
		var stuck *time.Timer
		if b.config.Stuck > 0 {
			stuck = time.AfterFunc(b.config.Stuck, func() {
				b.mu.Lock()
				defer b.mu.Unlock()
				if counted {
					counted = false
					b.landLocked()
					b.launchLocked()
				}
			})
		}
		send(f.ctx, batch)
		f.cancel()
		if stuck != nil {
			stuck.Stop()
		}
		for _, it := range f.items {
			it.Finish()
		}
		if b.config.Yield {
			for range 3 {
				runtime.Gosched()
			}
		}
		b.mu.Lock()
		b.freeLocked(f)
		if more = counted; more { // else another send has replaced it
			if batch, f, more = b.nextLocked(); !more {
				counted = false
				b.landLocked()
			}
		}
		b.launchLocked() // requests that its keys kept back may need several sends
		b.mu.Unlock()
	}
}

// begin calls Begin and then takes the requests of the send.
func (b *Batcher[R]) begin() (send func(context.Context, []R), batch []R, f *flight) {
	send, err := b.config.Begin(b.config.Context)
	b.mu.Lock()
	defer b.mu.Unlock()
	b.begun--
	if batch, f = b.takeLocked(); f == nil {
		f = new(flight)
		f.ctx, f.cancel = b.within(b.config.Context)
	}
	if err != nil {
		send = func(context.Context, []R) {}
		for _, it := range f.items {
			it.err = err
		}
	}
	b.launchLocked()
	return send, batch, f
}

// freeLocked frees the Serial keys of an ended send.
func (b *Batcher[R]) freeLocked(f *flight) {
	for _, it := range f.items {
		for _, k := range it.keys {
			if k.Rule&Serial != 0 {
				if b.held[k.Name]--; b.held[k.Name] == 0 {
					delete(b.held, k.Name)
				}
			}
		}
	}
	f.items = nil // else a caller that keeps one item would keep all
}

// takeLocked takes the requests of the next send, nil if there is none now.
func (b *Batcher[R]) takeLocked() ([]R, *flight) {
	if b.paused || len(b.queue) == 0 {
		return nil, nil
	}
	t := taking[R]{alone: len(b.queue) == 1}
	rest := b.queue[:0:0]
	for i, r := range b.queue {
		if len(t.batch) == b.config.Max {
			rest = append(rest, b.queue[i:]...)
			break
		}
		if !t.add(b, r) {
			rest = append(rest, r)
		}
	}
	b.queue = rest
	if len(t.batch) == 0 {
		return nil, nil
	}
	f := b.boardLocked(t.batch)
	f.leave = b.config.Grace > 0
	f.ctx, f.cancel = b.within(b.config.Context)
	return t.batch, f
}

func (b *Batcher[R]) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.config.Timeout > 0 {
		return context.WithTimeout(ctx, b.config.Timeout)
	}
	return context.WithCancel(ctx)
}

// boardLocked makes the flight of a batch.
func (b *Batcher[R]) boardLocked(batch []R) *flight {
	f := &flight{items: make([]*Item, len(batch))}
	f.waits.Store(int32(len(batch)))
	for i, r := range batch {
		it := r.item()
		f.items[i], it.flight = it, f
		for _, k := range it.keys {
			if k.Rule&Serial != 0 {
				b.held[k.Name]++
			}
		}
	}
	return f
}

// taking is a send that takes requests.
type taking[R Request] struct {
	alone   bool // the only request: its keys need not be noted
	batch   []R
	size    int
	keys    map[string]bool
	blocked map[string]bool // Order keys of requests that have to wait, and may not be overtaken
}

// add adds r to the send, unless r has to wait.
func (t *taking[R]) add(b *Batcher[R], r R) bool {
	it, c := r.item(), &b.config
	waits := len(t.batch) > 0 && (c.Kind != nil && c.Kind(r) != c.Kind(t.batch[0]) || c.MaxSize > 0 && t.size+it.size > c.MaxSize ||
		c.MaxKeys > 0 && t.moreKeys(it) > c.MaxKeys)
	waits = waits || b.blockedLocked(it)
	for _, k := range it.keys {
		waits = waits || k.Rule&Order != 0 && t.blocked[k.Name] || k.Rule&Once != 0 && t.keys[k.Name]
	}
	for _, k := range it.keys {
		switch {
		case t.alone:
		case !waits:
			note(&t.keys, k.Name)
		case k.Rule&Order != 0:
			note(&t.blocked, k.Name)
		}
	}
	if !waits {
		t.batch = append(t.batch, r)
		t.size += it.size
	}
	return !waits
}

// moreKeys is the number of different keys that the send would have with the item.
func (t *taking[R]) moreKeys(it *Item) int {
	n := len(t.keys)
	for _, k := range it.keys {
		if !t.keys[k.Name] {
			n++
		}
	}
	return n
}

func note(names *map[string]bool, name string) {
	if *names == nil {
		*names = map[string]bool{}
	}
	(*names)[name] = true
}
