// Package goredis makes a redisstore from a client of go-redis v9, for
// programs that already have one.
package goredis

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// New is redisstore.New with a client of go-redis: a *redis.Client, alone or
// behind Sentinel (NewFailoverClient), or a *redis.ClusterClient. The client
// stays the caller's: Close leaves it open.
//
// Two of the client's settings are overruled for what the store sends: scripts
// are never sent again after a network error, whatever MaxRetries says, as the
// first one may have taken effect; and deadlines of contexts are obeyed without
// ContextTimeoutEnabled. Hooks of the client see what the store sends, also those that
// are added later.
//
// ReadTimeout is how long the client waits on a connection that has fallen silent, and
// DialTimeout how long for a new one: two seconds and one leave a lease time to be
// renewed. Examine warns of a ReadTimeout of more than five seconds, or none. A context
// that is cancelled while a server falls silent ends a call within ReadTimeout, and calls
// after that one at once. Without ContextTimeoutEnabled a call with a deadline sooner than
// ReadTimeout costs a goroutine, and so does every call with a ReadTimeout of more than
// five seconds.
func New(client redis.UniversalClient, cfg redisstore.Config) (*redisstore.Store, error) {
	a := adapter{client: client, lane: &wire.Lane{}}
	switch c := client.(type) {
	case *redis.Client:
		// NewFailoverClient gives its client this address.
		a.follows = c.Options().Addr == "FailoverClient"
		a.silence, a.dated = c.Options().ReadTimeout, c.Options().ContextTimeoutEnabled
	case *redis.ClusterClient:
		a.cluster, a.follows = c, true
		a.silence, a.dated = c.Options().ReadTimeout, c.Options().ContextTimeoutEnabled
	default:
		return nil, fmt.Errorf("redis: %T cannot hold locks: use *redis.Client or *redis.ClusterClient", client)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	return redisstore.Adapt(ctx, a, cfg)
}

// adapter is a wire.Client.
type adapter struct {
	client  redis.UniversalClient
	cluster *redis.ClusterClient // nil unless it is one
	follows bool
	silence time.Duration // ReadTimeout; 0 or less: none
	dated   bool          // the client obeys deadlines of contexts
	lane    *wire.Lane
}

// longSilence is the longest ReadTimeout with which calls run on their callers'
// goroutines: callers who cancel their contexts may have to wait for it.
const longSilence = 5 * time.Second

// obeys reports whether the client ends a call with the deadline of its context, or sooner.
func (a adapter) obeys(ctx context.Context) bool {
	if a.silence <= 0 || a.silence > longSilence {
		return false
	}
	end, dated := ctx.Deadline()
	return !dated || a.dated || time.Until(end) >= a.silence
}

// once is a command that is sent one time.
type once struct{ *redis.Cmd }

func (once) NoRetry() bool { return true }

func (o once) Clone() redis.Cmder { return once{o.Cmd.Clone().(*redis.Cmd)} }

func command(ctx context.Context, call wire.Call) once {
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

func (a adapter) Run(ctx context.Context, call wire.Call) (any, error) {
	r := a.lane.Run(ctx, call, a.obeys(ctx), func(apart bool) wire.Result {
		ctx := ctx
		if apart && a.dated { // the lane waits for the answer, and so do calls of the same lock
			ctx = context.WithoutCancel(ctx)
		}
		c := command(ctx, call)
		a.client.Process(ctx, c)
		return result(c.Cmd)
	})
	return r.Value, r.Err
}

func (a adapter) RunAll(ctx context.Context, calls []wire.Call) []wire.Result {
	if a.cluster == nil {
		return a.pipeline(ctx, calls)
	}
	// A pipeline to several nodes is answered when the last of them has answered, and a
	// node that hangs never does.
	nodes := map[*redis.Client][]int{}
	for i, call := range calls {
		master, _ := a.cluster.MasterForKey(ctx, call.Keys[0]) // nil if unknown: the pipeline says why
		nodes[master] = append(nodes[master], i)
	}
	if len(nodes) == 1 {
		return a.pipeline(ctx, calls)
	}
	out := make([]wire.Result, len(calls))
	var wg sync.WaitGroup
	for _, at := range nodes {
		wg.Go(func() {
			part := make([]wire.Call, len(at))
			for n, i := range at {
				part[n] = calls[i]
			}
			for n, r := range a.pipeline(ctx, part) {
				out[at[n]] = r
			}
		})
	}
	wg.Wait()
	return out
}

// pipeline runs calls in one round trip. Scripts whose text the server does not know
// take another one, which does not wait for other servers.
func (a adapter) pipeline(ctx context.Context, calls []wire.Call) []wire.Result {
	return wire.WithText(calls, func(calls []wire.Call) []wire.Result {
		return wire.Obey(ctx, 0, len(calls), func(ctx context.Context) []wire.Result {
			cmds := make([]*redis.Cmd, len(calls))
			p := a.client.Pipeline()
			for i, call := range calls {
				c := command(ctx, call)
				cmds[i] = c.Cmd
				p.Process(ctx, c)
			}
			return flush(ctx, p, cmds)
		})
	})
}

func flush(ctx context.Context, p redis.Pipeliner, cmds []*redis.Cmd) []wire.Result {
	// Exec returns the error of some command; each command has its own.
	p.Exec(ctx)
	out := make([]wire.Result, len(cmds))
	for i, c := range cmds {
		out[i] = result(c)
	}
	return out
}

func (a adapter) Primaries(ctx context.Context, f func(wire.Node) error) error {
	if a.cluster == nil {
		return f(node{a.client})
	}
	// One at a time, as f expects; ForEachMaster runs them in parallel.
	masters := make(chan *redis.Client)
	done := make(chan error, 1)
	go func() {
		done <- a.cluster.ForEachMaster(ctx, func(ctx context.Context, c *redis.Client) error {
			select {
			case masters <- c:
			case <-ctx.Done():
			}
			return nil
		})
		close(masters)
	}()
	var failed error
	for c := range masters {
		if failed == nil {
			failed = f(node{c})
		}
	}
	if err := <-done; failed == nil && err != nil {
		failed = translate(err)
	}
	return failed
}

func (a adapter) Subscribe(ctx context.Context, channels []string, ready func(), message func(string)) error {
	sub := a.client.Subscribe(ctx, channels...)
	defer sub.Close()
	defer context.AfterFunc(ctx, func() { sub.Close() })() // reading does not obey ctx
	// Not Channel: it reconnects silently and drops messages when its reader is slow.
	standing := 0
	for {
		// If the connection was cut without notice, a PING gets no answer.
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

func (a adapter) Cluster() bool        { return a.cluster != nil }
func (a adapter) FollowsPrimary() bool { return a.follows }
func (a adapter) Silence() time.Duration {
	if a.silence <= 0 { // how go-redis notes "none" once the client has been made
		return wire.Endless
	}
	return a.silence
}

func (a adapter) Close() { a.client.Close() }

type node struct{ c redis.UniversalClient }

func (n node) Do(ctx context.Context, args ...string) (any, error) {
	r := n.DoAll(ctx, [][]string{args})
	return r[0].Value, r[0].Err
}

func (n node) DoAll(ctx context.Context, commands [][]string) []wire.Result {
	return wire.Obey(ctx, 0, len(commands), func(ctx context.Context) []wire.Result {
		cmds := make([]*redis.Cmd, len(commands))
		p := n.c.Pipeline()
		for i, args := range commands {
			list := make([]any, len(args))
			for j, arg := range args {
				list[j] = arg
			}
			cmds[i] = redis.NewCmd(ctx, list...)
			p.Process(ctx, cmds[i])
		}
		return flush(ctx, p, cmds)
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
	if server, ok := errors.AsType[redis.Error](err); ok {
		return &wire.ServerError{Text: server.Error()}
	}
	if dial, ok := errors.AsType[*net.OpError](err); ok && dial.Op == "dial" {
		return wire.NotSent(err)
	}
	if errors.Is(err, redis.ErrClosed) {
		return driver.ErrClosed
	}
	if errors.Is(err, redis.ErrPoolTimeout) || errors.Is(err, redis.ErrPoolExhausted) || strings.HasPrefix(err.Error(), "redis: all sentinels") {
		return wire.NotSent(err)
	}
	return err
}
