package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bound"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// client is a wire.Client over go-redis.
type client struct {
	redis.UniversalClient

	cluster *redis.ClusterClient // nil unless it is one
	follows bool
	silence time.Duration // ReadTimeout: how long it waits on a connection; 0 or less: no limit
	dated   bool          // it obeys deadlines of contexts
	lanes   []wire.Lane   // by slots in Cluster: neighbouring slots usually share a server

	links *links       // of a client that Open made, else nil
	calls sync.RWMutex // held by the calls of such a client, and by Close
}

const (
	// longSilence is the longest ReadTimeout with which calls run on their callers'
	// goroutines: a caller who cancels its context may have to wait for it.
	longSilence = 5 * time.Second

	// leastTry is the shortest bound of one try that a call on its caller's goroutine may
	// overrun, until ReadTimeout ends it.
	leastTry = 2 * time.Second

	clusterLanes = 64
)

// over wraps a client of the caller's.
func over(c redis.UniversalClient) (*client, error) {
	a := &client{UniversalClient: c, lanes: make([]wire.Lane, 1)}
	switch c := c.(type) {
	case *redis.Client:
		// NewFailoverClient gives its client this address.
		a.follows = c.Options().Addr == "FailoverClient"
		a.silence, a.dated = c.Options().ReadTimeout, c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		a.cluster, a.follows, a.lanes = c, true, make([]wire.Lane, clusterLanes)
		a.silence, a.dated = c.Options().ReadTimeout, c.Options().ContextTimeoutEnabled
	default:
		return nil, fmt.Errorf("redis: %T cannot hold locks: use *redis.Client or *redis.ClusterClient", c)
	}
	return a, nil
}

// once is a command without retries.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (o once) Clone() redis.Cmder { return once{o.Cmd.Clone().(*redis.Cmd)} }

func sentOnce(ctx context.Context, call wire.Call) once {
	args := make([]any, 0, 3+len(call.Keys)+len(call.Args))
	if call.Full {
		args = append(args, "eval", call.Script.Text(), len(call.Keys))
	} else {
		args = append(args, "evalsha", call.Script.SHA(), len(call.Keys))
	}
	for _, k := range call.Keys {
		args = append(args, k)
	}
	for _, a := range call.Args {
		args = append(args, a)
	}
	return once{redis.NewCmd(ctx, args...)}
}

// obeys reports whether the client ends a call by the deadline of its context. The bound
// of one try may be overrun if the server has just fallen silent: a goroutine for each
// call would take longer than the way to a near server.
func (c *client) obeys(ctx context.Context) bool {
	if c.links != nil {
		return true
	}
	if c.silence <= 0 || c.silence > longSilence {
		return false
	}
	end, dated := ctx.Deadline()
	left := time.Until(end)
	return !dated || c.dated || left >= c.silence || left >= leastTry && bound.ForOneTry(ctx)
}

func (c *client) Run(ctx context.Context, call wire.Call) (any, error) {
	if c.links != nil {
		if !c.calls.TryRLock() {
			return nil, driver.ErrClosed
		}
		defer c.calls.RUnlock()
	}
	lane := &c.lanes[0]
	if len(c.lanes) > 1 {
		lane = &c.lanes[int(slot(call.Keys[0]))*len(c.lanes)/slots]
	}
	r := lane.Run(ctx, call, c.obeys(ctx), func(apart bool) wire.Result {
		ctx := ctx
		if apart {
			ctx = c.lasting(ctx)
		}
		var r wire.Result
		if call.Acks != nil {
			r = c.acknowledged(ctx, []wire.Call{call})[0]
		} else {
			cmd := sentOnce(ctx, call)
			_ = c.Process(ctx, cmd) // the error is in the command
			r = c.result(cmd.Cmd)
		}
		if !apart && c.links != nil && !wire.Answered(r.Err) {
			if answered := c.links.draining(); answered != nil {
				lane.Abandon(call, answered)
			}
		}
		return r
	})
	return r.Value, r.Err
}

// lasting is the context of a call that continues until its answer when its caller
// leaves: other calls wait for that, or for the connection that it makes. A client that
// ignores deadlines needs no such context.
func (c *client) lasting(ctx context.Context) context.Context {
	if c.dated {
		return context.WithoutCancel(ctx)
	}
	return ctx
}

// result also drops the connections to a server that answers that it is the wrong one. In
// Cluster go-redis follows the servers' roles by itself.
func (c *client) result(cmd *redis.Cmd) wire.Result {
	r := result(cmd)
	if r.Err != nil && c.links != nil && c.cluster == nil && refusalOf(r.Err) == elsewhere {
		c.links.leave()
	}
	return r
}

func (c *client) RunAll(ctx context.Context, calls []wire.Call) []wire.Result {
	if c.cluster == nil {
		return c.pipeline(ctx, calls)
	}
	// One pipeline for each node: go-redis returns a pipeline to several nodes when the
	// last has answered, and a node that hangs would delay all.
	nodes := map[*redis.Client][]int{}
	for i, call := range calls {
		master, _ := c.cluster.MasterForKey(ctx, call.Keys[0]) // nil if unknown: the pipeline returns the error
		nodes[master] = append(nodes[master], i)
	}
	if len(nodes) == 1 {
		return c.pipeline(ctx, calls)
	}
	out := make([]wire.Result, len(calls))
	var wg sync.WaitGroup
	for _, at := range nodes {
		wg.Go(func() {
			part := make([]wire.Call, len(at))
			for n, i := range at {
				part[n] = calls[i]
			}
			for n, r := range c.pipeline(ctx, part) {
				out[at[n]] = r
			}
		})
	}
	wg.Wait()
	return out
}

// pipeline runs calls in one round trip. Scripts that the server does not know take
// another one, which does not wait for other servers.
func (c *client) pipeline(ctx context.Context, calls []wire.Call) []wire.Result {
	return wire.WithText(calls, func(calls []wire.Call) []wire.Result {
		return wire.Obey(ctx, len(calls), func(ctx context.Context) []wire.Result {
			ctx = c.lasting(ctx)
			if calls[0].Acks != nil {
				return c.acknowledged(ctx, calls)
			}
			cmds := make([]*redis.Cmd, len(calls))
			p := c.Pipeline()
			for i, call := range calls {
				cmd := sentOnce(ctx, call)
				cmds[i] = cmd.Cmd
				_ = p.Process(ctx, cmd) // queued, not sent
			}
			return flush(ctx, p, cmds, c.result)
		})
	})
}

func flush(ctx context.Context, p redis.Pipeliner, cmds []*redis.Cmd, result func(*redis.Cmd) wire.Result) []wire.Result {
	_, _ = p.Exec(ctx) // each command has its own error
	out := make([]wire.Result, len(cmds))
	for i, c := range cmds {
		out[i] = result(c)
	}
	return out
}

func (c *client) Primaries(ctx context.Context, f func(wire.Node) error) error {
	if c.cluster == nil {
		return f(node{c, c.UniversalClient})
	}
	// One at a time, as f expects: ForEachMaster runs them in parallel.
	masters := make(chan *redis.Client)
	done := make(chan error, 1)
	go func() {
		done <- c.cluster.ForEachMaster(ctx, func(ctx context.Context, m *redis.Client) error {
			select {
			case masters <- m:
			case <-ctx.Done():
			}
			return nil
		})
		close(masters)
	}()
	var failed error
	for m := range masters {
		if failed == nil {
			failed = f(node{c, m})
		}
	}
	if err := <-done; failed == nil && err != nil {
		failed = translate(err)
	}
	return failed
}

func (c *client) Subscribe(ctx context.Context, channels []string, ready func(), message func(string)) error {
	at := c.UniversalClient
	if c.cluster != nil {
		// A message reaches every node, so any node will do; another one after each loss.
		if m, err := c.cluster.MasterForKey(ctx, rand.Text()); err == nil {
			at = m
		}
	}
	sub := at.Subscribe(ctx, channels...)
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { sub.Close() })() // reading ignores ctx
	if c.links != nil {
		c.links.listening.Store(sub)
	}
	// Not Channel: it reconnects silently and drops messages when its reader is slow.
	standing := 0
	for {
		// A PING finds a connection that was cut without notice.
		m, err := sub.ReceiveTimeout(ctx, 10*time.Second)
		if timeout, ok := errors.AsType[net.Error](err); ok && timeout.Timeout() && ctx.Err() == nil {
			if err = sub.Ping(ctx); err == nil {
				m, err = sub.ReceiveTimeout(ctx, 5*time.Second)
			}
		}
		if err != nil {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			return translate(err)
		}
		switch m := m.(type) {
		case *redis.Subscription:
			if standing++; m.Kind == "subscribe" && standing == len(channels) {
				ready()
			}
		case *redis.Message:
			message(m.Payload)
		}
	}
}

func (c *client) Cluster() bool        { return c.cluster != nil }
func (c *client) FollowsPrimary() bool { return c.follows }

func (c *client) Silence() time.Duration {
	if c.silence <= 0 { // go-redis's form of "none"
		return wire.Endless
	}
	return c.silence
}

// Close waits for the calls under way, which links ends.
func (c *client) Close() {
	c.calls.Lock() // for good: later calls find the store closed
	_ = c.UniversalClient.Close()
}

type node struct {
	of *client
	c  redis.UniversalClient
}

func (n node) Do(ctx context.Context, args ...string) (any, error) {
	r := n.DoAll(ctx, [][]string{args})
	return r[0].Value, r[0].Err
}

func (n node) DoAll(ctx context.Context, commands [][]string) []wire.Result {
	return wire.Obey(ctx, len(commands), func(ctx context.Context) []wire.Result {
		ctx = n.of.lasting(ctx)
		cmds := make([]*redis.Cmd, len(commands))
		p := n.c.Pipeline()
		for i, args := range commands {
			list := make([]any, len(args))
			for j, arg := range args {
				list[j] = arg
			}
			cmds[i] = redis.NewCmd(ctx, list...)
			_ = p.Process(ctx, cmds[i]) // queued, not sent
		}
		return flush(ctx, p, cmds, result)
	})
}

func result(c *redis.Cmd) wire.Result {
	v, err := c.Result()
	if err == nil || errors.Is(err, redis.Nil) {
		return wire.Result{Value: v}
	}
	return wire.Result{Err: translate(err)}
}

func translate(err error) error {
	if denied, ok := errors.AsType[*wire.ServerError](err); ok { // from links, which keeps it
		return denied
	}
	if server, ok := errors.AsType[redis.Error](err); ok {
		return &wire.ServerError{Text: server.Error()}
	}
	if errors.Is(err, redis.ErrClosed) {
		return driver.ErrClosed
	}
	if isDial(err) || errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || strings.HasPrefix(err.Error(), "redis: all sentinels") {
		return wire.NotSent(err)
	}
	return err
}

// isDial reports whether err says that no connection was made.
func isDial(err error) bool {
	op, ok := errors.AsType[*net.OpError](err)
	return ok && op.Op == "dial"
}
