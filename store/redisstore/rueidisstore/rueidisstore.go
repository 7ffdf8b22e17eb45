// Package rueidisstore makes a redisstore over a rueidis client of the program.
package rueidisstore

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// New is redisstore.New with a client of rueidis, in the client's mode: single server,
// Sentinel or Cluster. The client stays the caller's: Close leaves it open.
//
// The client may have several connections, on which a later request could overtake an
// abandoned attempt for the same lock. So the store delays the later request until the
// attempt is answered, which costs a goroutine for each request whose context can end.
//
// When a NAT or a load balancer has forgotten a connection, rueidis waits eleven seconds
// on it before it makes another one, which takes up to five seconds. Meanwhile no lease
// is renewed. Set ClientOption.ConnWriteTimeout to two seconds and Dialer.Timeout to one.
// The store obeys contexts in any case.
//
// After a failover behind one name rueidis keeps a connection to the old primary, which
// only reads, unless ClientOption.ConnLifetime ends it. redisstore.Open and go-redis drop
// it.
func New(client rueidis.Client, cfg redisstore.Config) (*redisstore.Store, error) {
	return redisstore.Adapt(&adapter{c: client}, cfg)
}

// adapter is a wire.Client. rueidis never sends a script twice: it only retries commands
// that it knows to be read-only.
type adapter struct {
	c     rueidis.Client
	order wire.Order
}

func (a *adapter) command(call wire.Call) rueidis.Completed {
	if call.Full {
		return a.c.B().Eval().Script(call.Script.Text()).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
	}
	return a.c.B().Evalsha().Sha1(call.Script.SHA()).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
}

func (a *adapter) Run(ctx context.Context, call wire.Call) (any, error) {
	r := a.order.Run(ctx, call, func() wire.Result {
		return a.result(a.c.Do(context.WithoutCancel(ctx), a.command(call)))
	})
	return r.Value, r.Err
}

// RunAll makes each call by itself in Cluster: one call for several nodes would wait for
// a node that hangs.
func (a *adapter) RunAll(ctx context.Context, calls []wire.Call) []wire.Result {
	if !a.Cluster() {
		return a.multi(ctx, calls)
	}
	results := make([]wire.Result, len(calls))
	var wg sync.WaitGroup
	for i := range calls {
		wg.Go(func() { results[i] = a.multi(ctx, calls[i:i+1])[0] })
	}
	wg.Wait()
	return results
}

func (a *adapter) multi(ctx context.Context, calls []wire.Call) []wire.Result {
	return wire.WithText(calls, func(calls []wire.Call) []wire.Result {
		commands := make([]rueidis.Completed, len(calls))
		for i, call := range calls {
			commands[i] = a.command(call)
		}
		return a.do(ctx, a.c, commands)
	})
}

func (a *adapter) do(ctx context.Context, on rueidis.Client, commands []rueidis.Completed) []wire.Result {
	return wire.Obey(ctx, len(commands), func(ctx context.Context) []wire.Result {
		out := make([]wire.Result, len(commands))
		for i, r := range on.DoMulti(context.WithoutCancel(ctx), commands...) {
			out[i] = a.result(r)
		}
		return out
	})
}

func (a *adapter) Primaries(ctx context.Context, f func(wire.Node) error) error {
	if !a.Cluster() {
		return f(node{a, a.c})
	}
	for _, c := range a.c.Nodes() {
		n := node{a, c}
		role, err := n.Do(ctx, "ROLE")
		if err != nil {
			return err
		}
		if list, ok := role.([]any); ok && len(list) > 0 && list[0] == "master" {
			if err := f(n); err != nil {
				return err
			}
		}
	}
	return nil
}

// Subscribe uses a connection of its own: on one with commands, a burst of messages would
// delay answers.
func (a *adapter) Subscribe(ctx context.Context, channels []string, ready func(), message func(string)) error {
	c := a.c
	if a.Cluster() { // any node will do; another one after each loss, because the order of a map is random
		for _, c = range a.c.Nodes() {
			break
		}
	}
	d, giveBack := c.Dedicate()
	// A working connection is closed, not returned to the client: the client would clean
	// it first, and panics if a server that is busy with a script refuses that. A lost
	// connection is returned: closing it takes up to a second, in which no waiter would
	// be woken.
	end := d.Close
	defer func() { end() }()
	lost := d.SetPubSubHooks(rueidis.PubSubHooks{OnMessage: func(m rueidis.PubSubMessage) { message(m.Message) }})
	if err := d.Do(ctx, d.B().Subscribe().Channel(channels...).Build()).Error(); err != nil {
		return a.translate(err)
	}
	ready()
	select {
	case err := <-lost:
		end = giveBack
		if err == nil {
			err = rueidis.ErrClosing
		}
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (a *adapter) Cluster() bool          { return a.c.Mode() == rueidis.ClientModeCluster }
func (a *adapter) FollowsPrimary() bool   { return a.c.Mode() != rueidis.ClientModeStandalone }
func (a *adapter) Silence() time.Duration { return 0 } // unknown
func (a *adapter) Close()                 { a.c.Close() }

type node struct {
	*adapter
	c rueidis.Client
}

func (n node) Do(ctx context.Context, args ...string) (any, error) {
	r := n.DoAll(ctx, [][]string{args})[0]
	return r.Value, r.Err
}

func (n node) DoAll(ctx context.Context, commands [][]string) []wire.Result {
	built := make([]rueidis.Completed, len(commands))
	for i, args := range commands {
		built[i] = n.c.B().Arbitrary(args...).Build()
	}
	return n.do(ctx, n.c, built)
}

func (a *adapter) result(r rueidis.RedisResult) wire.Result {
	v, err := r.ToAny()
	if err == nil || rueidis.IsRedisNil(err) {
		return wire.Result{Value: v}
	}
	return wire.Result{Err: a.translate(err)}
}

func (a *adapter) translate(err error) error {
	if e, ok := errors.AsType[*rueidis.RedisError](err); ok {
		return &wire.ServerError{Text: e.Error()}
	}
	op, ok := errors.AsType[*net.OpError](err)
	switch {
	case ok && op.Op == "dial", errors.Is(err, rueidis.ErrNoAddr), errors.Is(err, rueidis.ErrNoSlot):
		return wire.NotSent(err)
	case errors.Is(err, rueidis.ErrClosing) && !a.FollowsPrimary(): // else a client has closed the connections to an old primary
		return driver.ErrClosed
	}
	return err
}
