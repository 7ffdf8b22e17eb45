package redisstore

import (
	"context"
	"crypto/tls"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// direct is a second connection of Open's client to a single server. It carries one
// call at a time, on its caller's goroutine, while no other call is under way.
//
// On the shared connection rueidis hands each call to a goroutine that writes and to
// one that reads, as soon as a context can end or two calls have met once: that takes
// longer than the server does. It does neither with a context that cannot end. So
// who calls here hides its context from rueidis, and has the connection's reads fail
// when it ends.
//
// Two connections must not let what comes later overtake what was abandoned. The
// calls abandoned here are in the lane's Order until they are answered. While one that
// was abandoned on the shared connection may be under way, nobody calls here.
//
// An address may be that of several servers, each of which serves some connections. So
// the server of a new connection must be that of the shared one.
type direct struct {
	lane   *lane
	links  *links
	option rueidis.ClientOption
	beside rueidis.Client // has the shared connection

	turn   atomic.Bool          // somebody uses it
	line   atomic.Pointer[link] // the connection, if it answered when it was last used
	dialed atomic.Pointer[link] // the last one made

	shared atomic.Int32  // calls under way on the shared connection
	met    atomic.Int64  // when two calls last met; as the next two, see now
	used   atomic.Int64  // when it last answered
	again  atomic.Int64  // before that it is not made anew
	joined atomic.Uint64 // links.shared when both connections had one server

	open   context.Context // ends when it is closed
	close  context.CancelFunc
	mu     sync.Mutex
	client rueidis.Client // nil until it is needed
	same   *link          // the last one that had the server of the shared connection
	pause  int64          // until the next attempt; doubles with each that is vain
}

const (
	// Calls that come together are cheaper on one connection. Two that met so
	// lately may meet again.
	quiet = int64(time.Millisecond)

	// A connection that has rested for so long is looked at before it is used: it may
	// have been closed. To look costs a system call.
	rest = int64(100 * time.Microsecond)

	// One that was idle for so long may have been forgotten by a NAT. It is asked
	// before it is used, while the call that finds it so goes by the shared one.
	idle = int64(time.Second)

	// tryAgain passes before it is made anew, and up to seldom if that is in vain: a
	// server may have no room for it, or the password may have changed.
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

// begins returns the connection if a call may be made on it, which then has the turn.
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
	case d.line.Load() != l: // whoever had the turn has lost it
		d.turn.Store(false)
		return nil
	case t-d.used.Load() > rest && !l.stands():
		d.line.Store(nil)
		d.turn.Store(false)
		return nil
	}
	return l
}

// run runs f for a call that has begun.
func (d *direct) run(ctx context.Context, call wire.Call, l *link, f func(context.Context) wire.Result) wire.Result {
	stays := context.AfterFunc(ctx, l.leave)
	a := f(context.Background())
	left := !stays()
	whole := answered(a.Err)
	switch {
	case whole && !left:
		l.whole()
		d.used.Store(now())
	case whole: // leave may run yet, and fail somebody else's call
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

func (d *direct) lost() {
	d.line.Store(nil)
	d.again.Store(now() + tryAgain)
}

// ask connects, or asks whether the connection still stands, for the calls to come.
func (d *direct) ask(t int64) {
	if t < d.again.Load() || !d.turn.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer d.turn.Store(false)
		d.line.Store(nil)
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

// answers reports whether the connection is one to the server of the shared one, and
// connects if there is none. d.mu is held.
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
	for range 3 { // the first one may only find that the connection is lost
		shared, l := d.links.shared.Load(), d.dialed.Load()
		if l == d.same && shared == d.joined.Load() {
			if pong, err := d.client.Do(context.Background(), d.client.B().Ping().Build()).ToString(); err == nil && pong == "PONG" && d.dialed.Load() == l {
				return true
			}
			continue // it is made anew
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

// serverID is what a server calls itself in this life, "" if it does not tell.
func serverID(ctx context.Context, c rueidis.Client) string {
	info, err := c.Do(ctx, c.B().Info().Section("server").Build()).ToString()
	if err != nil {
		return ""
	}
	return lines(info)["run_id"]
}

// end closes the connection. Who uses it then is answered first, or left by links.
func (d *direct) end() {
	d.close()
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.client != nil {
		d.client.Close()
	}
}
