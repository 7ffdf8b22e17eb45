package scale

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// orderVariable has the order of a child, a copy of this program.
const orderVariable = "BATON_SCALE_ORDER"

// order is what a child measures.
type order struct {
	Part string // a name of work
	At   place
	Plan planOf
	N    int     // how many leases, waiters or processes
	How  string  // of waiters
	Rate float64 // of pairs beside leases
	Name string  // the prefix of keys
}

// planOf is a plan that can be sent.
type planOf struct {
	TTL, Patience, Most, Open, Waiting, Drain time.Duration
	Loads                                     []float64
	Keys                                      int
	LimitKeys                                 []int
	Leases                                    []int
}

func (p *plan) send(leases []int) planOf {
	return planOf{TTL: p.ttl, Patience: p.patience, Most: p.most, Open: p.open, Waiting: p.waiting, Drain: p.drain, Loads: p.loads, Keys: p.keys, LimitKeys: p.limitKeys, Leases: leases}
}

// measurers measure the parts.
var measurers = map[string]func(context.Context, *order) (any, error){
	"pairs":   func(ctx context.Context, o *order) (any, error) { return measurePairs(ctx, o) },
	"limits":  func(ctx context.Context, o *order) (any, error) { return measureLimits(ctx, o) },
	"leases":  func(ctx context.Context, o *order) (any, error) { return measureLeases(ctx, o) },
	"waiters": func(ctx context.Context, o *order) (any, error) { return measureWaiters(ctx, o) },
	"hold":    func(ctx context.Context, o *order) (any, error) { return hold(ctx, o) },
}

// Main, in a child, measures, prints the result as a line, waits until its standard input
// ends, and ends the process. It does not release what it holds. In other processes Main does
// nothing.
func Main() {
	text := os.Getenv(orderVariable)
	if text == "" {
		return
	}
	var o order
	answer := struct {
		Error  string
		Result any
	}{}
	err := json.Unmarshal([]byte(text), &o)
	if err == nil {
		answer.Result, err = measurers[o.Part](context.Background(), &o)
	}
	if err != nil {
		answer.Error, answer.Result = err.Error(), nil
	}
	if err := json.NewEncoder(os.Stdout).Encode(answer); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
	_, _ = io.Copy(io.Discard, os.Stdin) // until the parent closes it, or ends
	os.Exit(0)
}

// child is a running copy of this program.
type child struct {
	cmd   *exec.Cmd
	stdin io.Closer
	out   *bufio.Reader
}

func startChild(o order) (*child, error) {
	text, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	program, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(program)
	cmd.Env = append(os.Environ(), orderVariable+"="+string(text))
	cmd.Stderr = os.Stderr
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := testserver.Start(cmd); err != nil {
		return nil, err
	}
	return &child{cmd, stdin, bufio.NewReader(stdout)}, nil
}

// result waits for the child's result.
func (c *child) result(into any) error {
	text, err := c.out.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the measuring process ended: %w", err)
	}
	answer := struct {
		Error  string
		Result json.RawMessage
	}{}
	if err := json.Unmarshal(text, &answer); err != nil {
		return err
	}
	if answer.Error != "" {
		return errors.New(answer.Error)
	}
	if into == nil {
		return nil
	}
	return json.Unmarshal(answer.Result, into)
}

func (c *child) end() {
	_ = c.stdin.Close()
	_ = c.cmd.Process.Kill() // fails only if it has ended already
	_ = c.cmd.Wait()         // it was killed
}

// sqliteCommits counts commits, for a place of SQLite.
type sqliteCommits struct{ atomic.Int64 }

// parts measures all parts of one store.
type parts struct {
	ctx   context.Context
	at    place
	plan  plan
	say   func(format string, args ...any)
	store *store
}

func (p *parts) part(o order, into any) error {
	if err := p.ctx.Err(); err != nil {
		return err
	}
	o.At = p.at
	if o.Plan.TTL == 0 {
		o.Plan = p.plan.send(nil)
	}
	c, err := startChild(o)
	if err != nil {
		return err
	}
	defer c.end()
	defer context.AfterFunc(p.ctx, func() { _ = c.cmd.Process.Kill() })()
	return c.result(into)
}

func (p *parts) all() error {
	s := p.store
	p.say("pairs")
	if err := p.part(order{Part: "pairs", Name: "pair"}, &s.Pairs); err != nil {
		return fmt.Errorf("pairs: %w", err)
	}
	if s.Name != "Redlock" && s.Name != "ZooKeeper" { // they have no limits
		p.say("limits")
		if err := p.part(order{Part: "limits", Name: "limit"}, &s.Limits); err != nil {
			return fmt.Errorf("limits: %w", err)
		}
	}
	sizes := p.plan.leases
	if s.Name == "memory" {
		sizes = p.plan.memory
	}
	p.say("leases %v", sizes)
	o := order{Part: "leases", Name: "lease", Plan: p.plan.send(sizes), Rate: min(beside*s.Pairs.Most, maxRate)}
	if err := p.part(o, &s.Leases); err != nil {
		return fmt.Errorf("leases: %w", err)
	}
	for i, n := range append(p.plan.waiters, p.plan.local, p.plan.local) {
		how := "apart"
		switch i - len(p.plan.waiters) {
		case 0:
			how = "local"
		case 1:
			how = "agent"
		}
		p.say("waiters %d %s", n, how)
		w := waiters{N: n, How: how}
		if err := p.part(order{Part: "waiters", N: n, How: how, Name: fmt.Sprintf("wait-%s-%d", how, n)}, &w); err != nil {
			if p.ctx.Err() != nil {
				return err
			}
			p.say("waiters %d %s: %v", n, how, err)
			w = waiters{N: n, How: how, Failed: err.Error()}
		}
		s.Waiters = append(s.Waiters, w)
	}
	if s.Name == "memory" || s.Name == "SQLite" {
		return nil
	}
	for _, n := range p.plan.processes {
		p.say("processes %d", n)
		x, err := p.processes(n)
		if err != nil {
			return fmt.Errorf("%d processes: %w", n, err)
		}
		s.Processes = append(s.Processes, x)
	}
	return nil
}

// processes starts n processes that hold a few leases each.
func (p *parts) processes(n int) (x processes, err error) {
	before := processMemory(p.at.PIDs)
	var all []*child
	defer func() {
		for _, c := range all {
			_ = c.stdin.Close()
		}
		for _, c := range all {
			c.end()
		}
	}()
	const together = 4 // that start at a time
	for i := range n {
		if i >= together {
			if err := all[i-together].result(nil); err != nil {
				return x, err
			}
		}
		if err := p.ctx.Err(); err != nil {
			return x, err
		}
		c, err := startChild(order{Part: "hold", At: p.at, Plan: p.plan.send(nil), N: p.plan.each, Name: fmt.Sprintf("process-%d-%d", n, i)})
		if err != nil {
			return x, err
		}
		all = append(all, c)
	}
	for _, c := range all[max(0, n-together):] {
		if err := c.result(nil); err != nil {
			return x, err
		}
	}
	period := p.plan.ttl / 3
	time.Sleep(period) // the last ones are renewed for the first time
	x = processes{N: n, Leases: p.plan.each}
	periods := 1
	if n == 1 { // long enough for rare requests, too
		periods = p.plan.periods
	}
	m := watch(p.ctx, &p.at)
	time.Sleep(time.Duration(periods) * period)
	if err := m.stop(p.ctx); err != nil {
		return x, err
	}
	x.Requests, x.ServerCPU = m.requests/float64(periods), m.serverCPU/float64(periods)
	x.ServerBytes = round((processMemory(p.at.PIDs) - before) / float64(n))
	memory := 0.0
	for _, c := range all[:min(n, 10)] {
		memory += processMemory([]int{c.cmd.Process.Pid})
	}
	x.ClientBytes = round(memory / float64(min(n, 10)))
	return x, nil
}

// meter measures what a server and this process do between two moments.
type meter struct {
	at                   *place
	before               work
	own                  work // the cost of asking
	server, client       time.Duration
	err                  error
	requests, commits    float64
	serverCPU, clientCPU float64
	sqlite               int64
	first                time.Time
	lasted               time.Duration
}

func watch(ctx context.Context, at *place) *meter {
	m := &meter{at: at}
	var first work
	if first, m.err = at.work(ctx); m.err != nil {
		return m
	}
	m.before, m.err = at.work(ctx)
	m.own = work{m.before.requests - first.requests, m.before.commits - first.commits}
	m.server, m.client, m.sqlite = processCPU(at.PIDs), processCPU([]int{os.Getpid()}), commits.Load()
	m.first = time.Now()
	return m
}

func (m *meter) stop(ctx context.Context) error {
	if m.err != nil {
		return m.err
	}
	m.lasted = time.Since(m.first)
	m.serverCPU = round(max(0, processCPU(m.at.PIDs)-m.server).Seconds())
	m.clientCPU = round((processCPU([]int{os.Getpid()}) - m.client).Seconds())
	after, err := m.at.work(ctx)
	m.requests = max(0, after.requests-m.before.requests-m.own.requests)
	m.commits = max(0, after.commits-m.before.commits-m.own.commits)
	if m.at.scheme() == "sqlite" {
		n := float64(commits.Load() - m.sqlite)
		m.requests, m.commits = n, n
	}
	return err
}
