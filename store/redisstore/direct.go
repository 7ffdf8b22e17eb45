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
type direct struct {
	lane   *lane
	option rueidis.ClientOption

	turn   atomic.Bool          // somebody uses it
	line   atomic.Pointer[link] // the connection, if it answered when it was last used
	dialed atomic.Pointer[link] // the last one made

	shared atomic.Int32 // calls under way on the shared connection
	met    atomic.Int64 // when two calls last met; as the next two, see now
	used   atomic.Int64 // when it last answered
	tried  atomic.Int64 // when it was last tried in vain

	open   context.Context // ends when it is closed
	close  context.CancelFunc
	mu     sync.Mutex
	client rueidis.Client // nil until it is needed
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

	// tryAgain passes between vain attempts to connect.
	tryAgain = int64(time.Second)
)

func newDirect(links *links, option rueidis.ClientOption) *direct {
	d := &direct{lane: links.lanes.all[0], option: option}
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
	case l == nil || t-d.used.Load() > idle:
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
	switch whole := answered(a.Err); {
	case whole && !left:
		d.used.Store(now())
	case whole: // leave may run yet, and fail somebody else's call
		d.line.Store(nil)
		_ = l.end()
	case left:
		d.line.Store(nil)
		a.Err = ctx.Err()
		d.lane.order.Abandon(call, l.ended)
	default:
		d.line.Store(nil)
	}
	d.turn.Store(false)
	return a
}

// ask connects, or asks whether the connection still stands, for the calls to come.
func (d *direct) ask(t int64) {
	if tried := d.tried.Load(); tried != 0 && t-tried < tryAgain || !d.turn.CompareAndSwap(false, true) {
		return
	}
	go func() {
		defer d.turn.Store(false)
		d.line.Store(nil)
		if d.answers() {
			d.line.Store(d.dialed.Load())
			d.used.Store(now())
			d.tried.Store(0)
		} else {
			d.tried.Store(now())
		}
	}()
}

func (d *direct) answers() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
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
	for range 2 { // the first one may only find that the connection is lost
		if err := d.client.Do(context.Background(), d.client.B().Ping().Build()).Error(); answered(ruError(err)) {
			return true
		}
	}
	return false
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
