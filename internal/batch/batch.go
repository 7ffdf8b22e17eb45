// Package batch sends requests to a store: at once while few sends are under way, and
// otherwise together, those that have gathered meanwhile. One more request in a send
// usually costs a server or a disk a small part of what one more send costs.
//
// A request that finds nothing under way can go on its caller's goroutine: handing it to
// another one takes a large part of the time that a near server needs.
//
// A caller may leave when its context ends. A request that was not sent then never is.
// A request that was sent goes on without its caller: a send belongs to all callers in
// it, so no caller's context ends it. If callers have a grace, a send that all of them
// have left ends.
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

// A Rule says how requests that share a key may travel. A key may have several rules.
type Rule uint8

const (
	// Once keeps two such requests from sharing a send.
	Once Rule = 1 << iota

	// Serial keeps two such requests from being in different sends that are under way
	// at the same time.
	Serial

	// Order keeps such a request from being sent before an earlier one.
	Order
)

// A Key is what requests may have in common. All that have it have it with one Rule.
type Key struct {
	Name string
	Rule Rule
}

// ErrImpatient says that a request was not sent because it waited for too long.
var ErrImpatient = errors.New("the request was not sent in time")

// A Request is a pointer to a struct that embeds Item. It has room for the answer,
// which is set when the item is done.
type Request interface{ item() *Item }

// An Item is what a Batcher knows of a request. NewItem makes one. A request is sent
// once, by one Batcher.
type Item struct {
	keys     []Key
	size     int
	flight   *flight // the send that it is in; set before that begins, under Batcher.mu
	err      error   // why it was not sent; set before done is closed
	finished atomic.Bool
	parted   atomic.Bool // no caller waits any more for what flight makes of it
	done     chan struct{}
}

// NewItem returns the Item of a new request.
func NewItem() Item { return Item{done: make(chan struct{})} }

func (i *Item) item() *Item { return i }

// Done is closed when the request has its answer, or will never be sent.
func (i *Item) Done() <-chan struct{} { return i.done }

// Finish says that the request has its answer. A Config's Send may call it before it
// returns, when other requests in the send take longer. Further calls do nothing.
func (i *Item) Finish() {
	if i.finished.CompareAndSwap(false, true) {
		close(i.done)
		i.part()
	}
}

// part notes that no caller waits any more for what the send makes of the item. With the
// last one the send's context ends, if that is wanted.
func (i *Item) part() {
	f := i.flight
	if f != nil && i.parted.CompareAndSwap(false, true) && f.waits.Add(-1) == 0 && f.leave {
		f.cancel()
	}
}

// A flight is one send.
type flight struct {
	items  []*Item
	waits  atomic.Int32 // of how many of them a caller waits
	leave  bool         // its context ends when that is none
	ctx    context.Context
	cancel context.CancelFunc
}

// A Config says what is sent, and how. Send or Begin, Max and InFlight are needed.
type Config[R Request] struct {
	// Send performs requests, and sets their answers before it returns.
	Send func(context.Context, []R)

	// Begin waits for what a send needs, such as a connection, and
	// returns the send, in place of Send. Requests are taken only then: until then callers
	// may leave, and more requests join. There may be none left. An error is that of the
	// requests that would have been sent.
	Begin func(context.Context) (send func(context.Context, []R), err error)

	// Direct sends a request on its caller's goroutine if it can be sent at once. The
	// context of Begin is then that of the caller; that of the send also ends Grace later
	// than it, and Do returns when the send does. If there are Begin and Send, Send does
	// it, in the caller's context.
	Direct bool

	Max      int // requests in one send
	InFlight int // sends at the same time

	// Go runs a function on another goroutine. By default it starts one.
	Go func(func())

	// Context ends all sends when it ends. By default none ends them.
	Context context.Context

	// Timeout is how long the context of one send lasts. By default it has no limit.
	Timeout time.Duration

	// Grace is how long a caller whose context has ended still waits for the answer to
	// a request that was sent. When the last caller leaves a send after that, the
	// context of the send ends. By default callers leave at once and the context does
	// not end.
	Grace time.Duration

	// Yield lets other goroutines run between two sends: callers that were just
	// answered mostly ask again, and go with the next send.
	Yield bool

	// Stuck is how long a send counts among InFlight. After that another send may begin
	// in its stead. By default it has no limit.
	Stuck time.Duration

	// Keys are what a request may share with others. Defaults to nothing.
	Keys func(R) []Key

	// Patience is how long a request waits to be taken. After that it is not sent, and the
	// error is ErrImpatient. By default it waits until its context ends.
	Patience time.Duration

	// Kind separates requests that never share a send. Defaults to one kind.
	Kind func(R) any

	// Size is the size of a request, and MaxSize the limit for the requests of one send
	// together, if they are several. Defaults to no limit.
	Size    func(R) int
	MaxSize int

	// MaxKeys is how many different keys the requests of one send may have, if they are
	// several. Defaults to no limit.
	MaxKeys int
}

// A Batcher sends requests. Its methods may be called by several goroutines at the same
// time. It need not be closed: it has no goroutine when nothing is under way.
type Batcher[R Request] struct {
	config Config[R]

	mu     sync.Mutex
	landed sync.Cond // flying has become 0
	queue  []R
	flying int            // sends that have begun, or will as soon as they can
	begun  int            // those of them that have not taken requests yet
	held   map[string]int // Serial keys, and how many requests under way have each
	paused bool
	closed bool
}

// New returns a Batcher.
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

// Do sends r and waits for its answer. If ctx ends first and r was not sent, r never
// will be, and the error is that of ctx. If r was sent, the error is driver.ErrUnknown,
// too, and r.Done tells when the answer is there. If r was not sent because of Close,
// the error is driver.ErrClosed.
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

// refuse says why the item will not be sent.
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
		b.launchLocked() // it may have kept others back
	}
	return true
}

// keptLocked reports whether each key of an item is held by a send.
func (b *Batcher[R]) keptLocked(it *Item) bool {
	return len(it.keys) > 0 && !slices.ContainsFunc(it.keys, func(k Key) bool { return k.Rule&Serial == 0 || b.held[k.Name] == 0 })
}

// blockedLocked reports whether some key of an item is held by a send.
func (b *Batcher[R]) blockedLocked(it *Item) bool {
	return slices.ContainsFunc(it.keys, func(k Key) bool { return k.Rule&Serial != 0 && b.held[k.Name] > 0 })
}

// leave notes that the caller of an item that was sent no longer waits. It returns
// false if the item is done.
func (b *Batcher[R]) leave(it *Item) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if it.finished.Load() { // it finished just now
		return false
	}
	it.part()
	return true
}

// Close stops sending: Do returns driver.ErrClosed for requests that wait, and for
// later ones. Sends under way go on, and Go is not called any more.
func (b *Batcher[R]) Close() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.closed = true
	for _, r := range b.queue {
		r.item().refuse(driver.ErrClosed)
	}
	b.queue = nil
}

// Wait waits until no send is under way.
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

// Waiting is how many requests have not been sent.
func (b *Batcher[R]) Waiting() int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.queue)
}

// Pause stops sending until resume is called, so that a test can decide which requests
// go together. Sends under way go on.
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

// nextLocked reports whether there is something for one more send, and takes it unless the
// send has to begin first.
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

// fly sends until nothing is left to send.
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
		if more = counted; more { // else another send runs in its stead
			if batch, f, more = b.nextLocked(); !more {
				counted = false
				b.landLocked()
			}
		}
		b.launchLocked() // what its keys kept back may need more than one send
		b.mu.Unlock()
	}
}

// begin waits for what a send needs, and then takes its requests.
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

// freeLocked frees the Serial keys of a send that has ended.
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
	f.items = nil // so that a caller that keeps one item does not keep the others
}

// takeLocked takes the requests of the next send; nil if there is none now.
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

// within is a context that lasts for one send.
func (b *Batcher[R]) within(ctx context.Context) (context.Context, context.CancelFunc) {
	if b.config.Timeout > 0 {
		return context.WithTimeout(ctx, b.config.Timeout)
	}
	return context.WithCancel(ctx)
}

// boardLocked makes the send of requests.
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

// taking is a send that is being made up.
type taking[R Request] struct {
	alone   bool // there is one request, so its keys need not be noted
	batch   []R
	size    int
	keys    map[string]bool // of the requests in it
	blocked map[string]bool // Order keys of requests that have to wait, and may not be overtaken
}

// add adds r, unless it has to wait.
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

// moreKeys is how many different keys the send would have with those of the item.
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
