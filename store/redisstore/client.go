package redisstore

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// ruClient is a wire.Client over rueidis. rueidis never sends a script twice:
// only commands that it knows to be read-only are retried.
type ruClient struct {
	c rueidis.Client

	// links are those of Open's client, which has one connection for all scripts (to
	// each node): the server executes them in the order in which they were sent, those
	// that were abandoned included. A caller's client may have several, so that every
	// call runs on a goroutine of its own, by order.
	links  *links
	direct *direct // nil: none
	order  *wire.Order

	// apart says that in Cluster a node did not answer the last RunAll, so that the
	// next one makes each call separately.
	apart *atomic.Bool
}

func (r ruClient) command(c rueidis.Client, call wire.Call) rueidis.Completed {
	if call.Full {
		return c.B().Eval().Script(call.Script.Text()).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
	}
	return c.B().Evalsha().Sha1(call.Script.SHA()).Numkeys(int64(len(call.Keys))).Key(call.Keys...).Arg(call.Args...).Build()
}

func (r ruClient) Run(ctx context.Context, call wire.Call) (any, error) {
	on := func(c rueidis.Client) func(context.Context) wire.Result {
		return func(ctx context.Context) wire.Result {
			return r.result(c.Do(ctx, r.command(c, call)))
		}
	}
	if d := r.direct; d != nil {
		if l := d.begins(ctx); l != nil {
			a := d.run(ctx, call, l, on(d.client))
			return a.Value, a.Err
		}
		d.shared.Add(1)
		defer d.shared.Add(-1)
	}
	var a wire.Result
	if r.links != nil {
		a = r.links.lanes.of(call).run(ctx, call, on(r.c))
	} else {
		a = r.order.Run(ctx, call, func() wire.Result { return on(r.c)(context.WithoutCancel(ctx)) })
	}
	return a.Value, a.Err
}

// undate hides a context's deadline. rueidis, if it has nothing else to do, waits for
// that moment or the answer, and does not notice when the context ends earlier.
func undate(ctx context.Context) context.Context {
	if _, dated := ctx.Deadline(); dated {
		return undated{ctx}
	}
	return ctx
}

type undated struct{ context.Context }

func (undated) Deadline() (t time.Time, ok bool) { return t, false }

func (r ruClient) RunAll(ctx context.Context, calls []wire.Call) []wire.Result {
	if err := ctx.Err(); err != nil {
		return failAll(len(calls), wire.NotSent(err))
	}
	if !r.Cluster() {
		return wire.WithText(calls, func(calls []wire.Call) []wire.Result { return r.multi(ctx, calls) })
	}
	results := make([]wire.Result, len(calls))
	alone := func(wire.Result) bool { return true }
	if !r.apart.Load() {
		results = wire.WithText(calls, func(calls []wire.Call) []wire.Result { return r.multi(ctx, calls) })
		// If there is no node for one slot, nothing is sent to the others either.
		alone = func(a wire.Result) bool { return errors.Is(a.Err, rueidis.ErrNoSlot) }
	}
	var wg sync.WaitGroup
	for i := range calls {
		if alone(results[i]) {
			wg.Go(func() {
				results[i] = wire.WithText(calls[i:i+1], func(call []wire.Call) []wire.Result { return r.multi(ctx, call) })[0]
			})
		}
	}
	wg.Wait()
	r.apart.Store(slices.ContainsFunc(results, func(a wire.Result) bool { return !wire.Answered(a.Err) }))
	return results
}

// partly is how long after the end of its context a call to several nodes may take
// to say which of them have answered.
const partly = 50 * time.Millisecond

// multi costs a fifth of as many single calls, but is answered only when the last node
// has answered, or its context ends. On a single server what it sends outlives ctx:
// other calls may wait for the connection that it makes.
func (r ruClient) multi(ctx context.Context, calls []wire.Call) []wire.Result {
	grace, lasting := partly, undate
	if !r.Cluster() {
		grace, lasting = 0, context.WithoutCancel
	}
	return wire.Obey(ctx, grace, len(calls), func(ctx context.Context) []wire.Result {
		if r.direct != nil {
			r.direct.shared.Add(1)
			defer r.direct.shared.Add(-1)
		}
		commands := make([]rueidis.Completed, len(calls))
		for i, call := range calls {
			commands[i] = r.command(r.c, call)
		}
		out := make([]wire.Result, len(calls))
		for i, res := range r.c.DoMulti(lasting(ctx), commands...) {
			out[i] = r.result(res)
		}
		return out
	})
}

func (r ruClient) Primaries(ctx context.Context, f func(wire.Node) error) error {
	if !r.Cluster() {
		return f(ruNode{r.c})
	}
	for _, c := range r.c.Nodes() {
		n := ruNode{c}
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

func (r ruClient) Subscribe(ctx context.Context, channels []string, ready func(), message func(string)) error {
	c := r.c
	if r.Cluster() {
		// A message reaches every node, so any of them will do; another
		// one after each loss, as maps are walked in random order.
		for _, c = range r.c.Nodes() {
			break
		}
	}
	// A connection of its own: on one that carries commands, a burst of
	// messages would delay answers.
	d, giveBack := c.Dedicate()
	// A connection that works is closed, not returned to the client: the client would
	// clean it first, and panics if a server that is busy with a script refuses that. A
	// lost connection is returned: to close it takes up to a second, in which no waiter
	// would be woken.
	end := d.Close
	defer func() { end() }()
	lost := d.SetPubSubHooks(rueidis.PubSubHooks{
		OnMessage: func(m rueidis.PubSubMessage) { message(m.Message) },
	})
	if err := d.Do(ctx, d.B().Subscribe().Channel(channels...).Build()).Error(); err != nil {
		return ruError(err)
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

func (r ruClient) Cluster() bool        { return r.c.Mode() == rueidis.ClientModeCluster }
func (r ruClient) FollowsPrimary() bool { return r.c.Mode() != rueidis.ClientModeStandalone }
func (r ruClient) Silence() time.Duration {
	if r.links != nil {
		return answerPatience
	}
	return 0 // it does not tell
}

func (r ruClient) Close() {
	r.c.Close()
	if r.direct != nil {
		r.direct.end()
	}
}

type ruNode struct{ c rueidis.Client }

func (n ruNode) Do(ctx context.Context, args ...string) (any, error) {
	a := n.DoAll(ctx, [][]string{args})[0]
	return a.Value, a.Err
}

func (n ruNode) DoAll(ctx context.Context, commands [][]string) []wire.Result {
	built := make([]rueidis.Completed, len(commands))
	for i, args := range commands {
		built[i] = n.c.B().Arbitrary(args...).Build()
	}
	return wire.Obey(ctx, 0, len(commands), func(ctx context.Context) []wire.Result {
		return ruResults(n.c.DoMulti(context.WithoutCancel(ctx), built...))
	})
}

// result also leaves a server that says that it is the wrong one. In Cluster rueidis
// follows the servers' roles by itself.
func (r ruClient) result(res rueidis.RedisResult) (a wire.Result) {
	a.Value, a.Err = ruResult(res)
	if errors.Is(a.Err, rueidis.ErrClosing) && !r.FollowsPrimary() { // else a client closes the connections to an old primary
		a.Err = driver.ErrClosed
	}
	if a.Err != nil && r.links != nil && refusalOf(a.Err) == elsewhere && !r.Cluster() {
		r.links.leave()
	}
	return a
}

func ruResults(rs []rueidis.RedisResult) []wire.Result {
	out := make([]wire.Result, len(rs))
	for i, r := range rs {
		out[i].Value, out[i].Err = ruResult(r)
	}
	return out
}

func ruResult(r rueidis.RedisResult) (any, error) {
	v, err := r.ToAny()
	if err == nil || rueidis.IsRedisNil(err) {
		return v, nil
	}
	return nil, ruError(err)
}

func ruError(err error) error {
	if e, ok := errors.AsType[*rueidis.RedisError](err); ok {
		return &wire.ServerError{Text: e.Error()}
	}
	if isDial(err) || errors.Is(err, rueidis.ErrNoAddr) || errors.Is(err, rueidis.ErrNoSlot) {
		return wire.NotSent(err)
	}
	return err
}

// isDial reports whether no connection came about.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}

func failAll(n int, err error) []wire.Result {
	out := make([]wire.Result, n)
	for i := range out {
		out[i].Err = err
	}
	return out
}
