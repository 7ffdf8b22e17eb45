package redisstore

import (
	"cmp"
	"context"
	"crypto/tls"
	"net"
	"reflect"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// direct is a second connection of Open's client to a single server. It carries one
// call at a time, on its caller's goroutine, while no other call is under way.
//
// On the shared connection rueidis hands each call to one goroutine that writes and to
// another that reads, once a context can end or two calls have met: that takes longer
// than the server's work. With a context that cannot end it uses neither. So run hides
// the caller's context from rueidis, and makes the connection's reads and writes fail
// when that context ends.
//
// With two connections a later call could overtake one that was abandoned. So the
// lane's Order keeps a call that was abandoned here until it is answered, and no call
// is made here while one that was abandoned on the shared connection may be under way.
//
// One address may lead to several servers, each with some of the connections. So a
// new connection is used only if it leads to the same server as the shared one.
type direct struct {
	lane   *lane
	links  *links
	option rueidis.ClientOption
	beside rueidis.Client // has the shared connection

	turn   atomic.Bool          // a call uses it, or ask does
	ends   endings              // for the call that has turn
	line   atomic.Pointer[link] // the connection, if it answered when it was last used
	dialed atomic.Pointer[link] // the last one made

	shared atomic.Int32  // calls under way on the shared connection
	met    atomic.Int64  // when two calls last met, in the form of now, as used and again are
	used   atomic.Int64  // when it last answered
	again  atomic.Int64  // the moment before which it is not made again
	joined atomic.Uint64 // links.shared when both connections led to the same server

	open   context.Context // ends when it is closed
	close  context.CancelFunc
	mu     sync.Mutex
	client rueidis.Client // nil until it is needed
	same   *link          // the last one that led to the server of the shared connection
	pause  int64          // until the next attempt; doubles with each failure
}

const (
	// Calls that come together are cheaper on one connection. For as long as quiet
	// after two calls met, the next two may meet as well.
	quiet = int64(time.Millisecond)

	// After rest without a call, a connection is looked at before it is used: it may
	// have been closed. To look costs a system call.
	rest = int64(100 * time.Microsecond)

	// After idle without a call, a NAT may have forgotten the connection. So ask checks
	// it before it is used, and the call that finds it idle goes by the shared one.
	idle = int64(time.Second)

	// tryAgain passes before the connection is made again, and up to seldom after
	// failures: the server may have no room for it, or the password may have changed.
	tryAgain = int64(time.Second)
	seldom   = int64(time.Minute)
)

func newDirect(links *links, option rueidis.ClientOption) *direct {
	d := &direct{lane: links.lanes.all[0], links: links, option: option, pause: tryAgain}
	d.open, d.close = context.WithCancel(context.Background())
	d.option.DialCtxFn = func(_ context.Context, addr string, _ *net.Dialer, t *tls.Config) (net.Conn, error) {
		l, err := links.dialed(d.open, addr, t, true)
		if err != nil {
			return nil, err
		}
		d.dialed.Store(l)
		return l, nil
	}
	d.option.Dialer.KeepAlive = -1 // no PING of rueidis's own may meet a call
	return d
}

// begins returns the connection if a call may be made on it, and has then set d.turn
// for that call.
func (d *direct) begins(ctx context.Context) *link {
	if ctx.Err() != nil {
		return nil
	}
	t := now()
	l := d.line.Load()
	switch {
	case d.shared.Load() > 0 || d.turn.Load():
		d.met.Store(t)
		return nil
	case t-d.met.Load() < quiet || !d.lane.calm():
		return nil
	case l == nil || t-d.used.Load() > idle || d.joined.Load() != d.links.shared.Load():
		d.ask(t)
		return nil
	case !d.turn.CompareAndSwap(false, true):
		d.met.Store(t)
		return nil
	case d.line.Load() != l: // the call that had d.turn has lost the connection
		d.turn.Store(false)
		return nil
	case t-d.used.Load() > rest && !l.isOpen():
		d.drop()
		d.turn.Store(false)
		return nil
	}
	return l
}

// run runs f for a call that has begun.
func (d *direct) run(ctx context.Context, call wire.Call, l *link, f func(context.Context) wire.Result) wire.Result {
	e := d.ends.of(ctx, l)
	if !e.begin() {
		d.turn.Store(false)
		return wire.Result{Err: wire.NotSent(cmp.Or(ctx.Err(), context.Canceled))}
	}
	a := f(context.Background())
	left := !e.finish()
	whole := wire.Answered(a.Err)
	switch {
	case whole && !left && refusalOf(a.Err) != elsewhere:
		l.whole()
		d.used.Store(now())
	case whole: // it is the wrong server, or leave may still run and would make the next call fail
		d.lost()
		_ = l.end()
	case left:
		d.lost()
		a.Err = ctx.Err()
		d.lane.order.Abandon(call, l.ended)
	default:
		d.lost()
	}
	d.turn.Store(false)
	return a
}

// lost gives the connection up. The caller has d.turn.
func (d *direct) lost() {
	d.drop()
	d.again.Store(now() + tryAgain)
}

// drop makes the calls that follow go by the shared connection. The caller has d.turn.
func (d *direct) drop() {
	d.ends.forget()
	d.line.Store(nil)
}

// ask connects, or checks that the connection still answers, on a goroutine of its own:
// later calls use the connection.
func (d *direct) ask(t int64) {
	if t < d.again.Load() || !d.turn.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer d.turn.Store(false)
		d.drop()
		d.mu.Lock()
		defer d.mu.Unlock()
		if !d.answers() {
			d.again.Store(now() + d.pause)
			d.pause = min(2*d.pause, seldom)
			return
		}
		d.pause = tryAgain
		l := d.dialed.Load()
		l.whole()
		d.used.Store(now())
		d.line.Store(l)
	}()
}

// answers reports whether the connection answers and leads to the server of the shared
// one. It connects if there is no connection. d.mu is held.
func (d *direct) answers() bool {
	if d.open.Err() != nil {
		return false
	}
	if d.client == nil {
		c, err := rueidis.NewClient(d.option)
		if err != nil {
			return false
		}
		d.client = c
	}
	for range 3 { // the first attempt may only find that the connection is lost
		shared, l := d.links.shared.Load(), d.dialed.Load()
		if l == d.same && shared == d.joined.Load() {
			if pong, err := d.client.Do(context.Background(), d.client.B().Ping().Build()).ToString(); err == nil && pong == "PONG" && d.dialed.Load() == l {
				return true
			}
			continue // rueidis makes another connection
		}
		id := serverID(context.Background(), d.client)
		if id == "" {
			continue
		}
		ctx, cancel := context.WithTimeout(d.open, checkTimeout)
		other := serverID(ctx, d.beside)
		cancel()
		if id != other {
			return false
		}
		d.same = d.dialed.Load()
		d.joined.Store(shared)
		return true
	}
	return false
}

// serverID is the run_id of a server, which every restart changes; "" if the server
// does not tell.
func serverID(ctx context.Context, c rueidis.Client) string {
	info, err := c.Do(ctx, c.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return ""
	}
	return lines(info)["run_id"]
}

// end closes the connection. A call that uses it is answered first, or links.close ends
// it.
func (d *direct) end() {
	d.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client != nil {
		d.client.Close()
	}
	if d.turn.CompareAndSwap(false, true) { // and stays, as there is no connection any more
		d.ends.forget()
	}
}

// An ending makes the call under way on a connection fail when its context ends. To
// register with a context takes as long as a tenth of a call, so an ending serves all
// calls with that context, as long as endings keeps it.
type ending struct {
	ctx  context.Context
	done <-chan struct{} // of ctx: frameworks reuse one context object for several requests
	link *link
	stop func() bool

	state atomic.Int32
}

const (
	atRest   = iota // no call is under way
	underWay        // one is
	ended           // the context has ended
)

// over runs when the context has ended.
func (e *ending) over() {
	if e.state.Swap(ended) == underWay {
		e.link.leave()
	}
}

// begin reports whether a call may begin: the context has not ended.
func (e *ending) begin() bool { return e.state.CompareAndSwap(atRest, underWay) }

// finish ends the call. It returns false if the context has ended before: leave then has
// run, or is about to.
func (e *ending) finish() bool { return e.state.CompareAndSwap(underWay, atRest) }

// endings keeps those of the last two contexts: a Locker that locks and unlocks has one
// for each.
type endings struct {
	last [2]*ending
	used int // the index of the one that was used last
}

func (es *endings) of(ctx context.Context, l *link) *ending {
	done := ctx.Done()
	if reflect.TypeOf(ctx).Kind() == reflect.Pointer { // others may not be comparable
		for i, e := range es.last {
			if e != nil && e.link == l && e.ctx == ctx && e.done == done {
				es.used = i
				return e
			}
		}
	}
	es.used = 1 - es.used
	if e := es.last[es.used]; e != nil {
		e.stop()
	}
	e := &ending{ctx: ctx, done: done, link: l}
	e.stop = context.AfterFunc(ctx, e.over)
	es.last[es.used] = e
	return e
}

// forget leaves the contexts.
func (es *endings) forget() {
	for i, e := range es.last {
		if e != nil {
			e.stop()
		}
		es.last[i] = nil
	}
}
