package redisstore

import (
	"cmp"
	"context"
	"net"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// acknowledged runs calls of one server in one pipeline, followed by the questions what
// the server's replicas have acknowledged.
//
// A server carries out the commands of a pipeline without other commands in between,
// unless it waits or the pipeline comes in pieces. So the first ROLE returns the offset
// of the last call, or a later one. The second ROLE, after WAIT, returns what each
// replica has acknowledged. The count that WAIT returns does not tell which replicas
// these are.
func (c *client) acknowledged(ctx context.Context, calls []wire.Call) []wire.Result {
	at, _ := c.UniversalClient.(*redis.Client)
	node := ""
	if c.cluster != nil {
		m, err := c.cluster.MasterForKey(ctx, calls[0].Keys[0])
		if err != nil {
			out := make([]wire.Result, len(calls))
			for i := range out {
				out[i].Err = wire.NotSent(err)
			}
			return out
		}
		at, node = m, m.Options().Addr
	}
	out := c.askBehind(ctx, at, node, false, calls)
	for range clusterRedirects {
		to, asking := c.redirected(ctx, out)
		if to == nil {
			break
		}
		out = c.askBehind(ctx, to, to.Options().Addr, asking, calls)
	}
	return out
}

// clusterRedirects is the greatest number of MOVED and ASK answers that a call follows.
const clusterRedirects = 3

// redirected returns the other node that all calls must be sent to, if there is one.
func (c *client) redirected(ctx context.Context, out []wire.Result) (to *redis.Client, asking bool) {
	if c.cluster == nil {
		return nil, false
	}
	addr := ""
	for _, r := range out {
		e, ok := r.Err.(*wire.ServerError)
		if !ok || e.Code() != "MOVED" && e.Code() != "ASK" {
			return nil, false
		}
		asking = e.Code() == "ASK"
		addr = e.Text[strings.LastIndexByte(e.Text, ' ')+1:]
	}
	if !asking {
		c.cluster.ReloadState(ctx)
	}
	found := make(chan *redis.Client, 1)
	_ = c.cluster.ForEachMaster(ctx, func(_ context.Context, m *redis.Client) error {
		if m.Options().Addr == addr {
			found <- m
		}
		return nil
	})
	select {
	case to = <-found:
	default: // the next attempt knows the node
	}
	return to, asking
}

// askBehind sends calls and the questions after them to one server. asking says that the
// server is taking over their slot.
func (c *client) askBehind(ctx context.Context, at *redis.Client, node string, asking bool, calls []wire.Call) []wire.Result {
	conn := at.Conn()
	defer conn.Close()
	var cmds []*redis.Cmd
	p := conn.Pipeline()
	send := func(cmd once) (number int) {
		_ = p.Process(ctx, cmd) // queued, not sent
		cmds = append(cmds, cmd.Cmd)
		return len(cmds) - 1
	}
	plain := func(args ...any) (number int) { return send(once{redis.NewCmd(ctx, args...)}) }

	numbers := make([]int, len(calls))
	for i, call := range calls {
		if asking {
			plain("asking")
		}
		numbers[i] = send(sentOnce(ctx, call))
	}
	ask := calls[0].Acks
	end := time.Now().Add(c.within(ctx, ask.Within))
	left := func() int64 { return max(time.Until(end).Milliseconds(), 1) } // 0 would be no limit
	before := plain("role")
	wait := plain("wait", ask.Await(node), left())
	after := plain("role")
	who, nodes := wait, wait
	if ask.Who {
		who = plain("info", "server")
	}
	if ask.Nodes != nil && ask.Nodes(node) {
		nodes = plain("cluster", "nodes")
	}
	results := flush(ctx, p, cmds, c.result)

	said := wire.Acks{Node: node, Err: cmp.Or(results[wait].Err, results[who].Err, results[nodes].Err)}
	if ask.Who {
		said.Server = lines(text(results[who].Value))["run_id"]
	}
	if nodes != wait {
		said.Cluster = text(results[nodes].Value)
	}
	var err1, err2 error
	said.Offset, _, err1 = role(results[before])
	_, said.Replicas, err2 = role(results[after])
	said.Err = cmp.Or(said.Err, err1, err2)
	for said.Err == nil && ask.Lacks(&said) && time.Now().Before(end) {
		p, cmds = conn.Pipeline(), nil
		plain("wait", said.Acknowledged()+1, left())
		plain("role")
		again := flush(ctx, p, cmds, c.result)
		_, said.Replicas, err2 = role(again[1])
		said.Err = cmp.Or(again[0].Err, err2)
	}
	out := make([]wire.Result, len(calls))
	for i, call := range calls {
		out[i] = results[numbers[i]]
		call.Acks.Answered(said)
	}
	return out
}

// within shortens d to the limits of the client and the context: the server must answer
// before the client gives up the connection.
func (c *client) within(ctx context.Context, d time.Duration) time.Duration {
	if c.silence > 0 {
		d = min(d, c.silence/2)
	}
	if end, dated := ctx.Deadline(); dated {
		d = min(d, time.Until(end)*3/4)
	}
	return d
}

// role parses a primary's answer to ROLE: its offset, and those of its replicas.
func role(r wire.Result) (offset int64, replicas map[string]int64, err error) {
	a := list(r.Value)
	switch {
	case r.Err != nil:
		return 0, nil, r.Err
	case len(a) < 3 || text(a[0]) != "master":
		return 0, nil, &wire.ServerError{Text: "READONLY the server is a replica by now"}
	}
	replicas = map[string]int64{}
	for _, one := range list(a[2]) {
		if f := list(one); len(f) >= 3 {
			replicas[net.JoinHostPort(text(f[0]), text(f[1]))] = number(f[2])
		}
	}
	return number(a[1]), replicas, nil
}
