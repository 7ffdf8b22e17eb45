package verify

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/history"
)

// A trial is one run with one fault: fresh clients, fresh keys, a history.
type trial struct {
	*runner
	fault  fault.Fault
	rng    *rand.Rand // for the plan and the fault
	dir    string     // private, for all files of the trial
	prefix string     // of all keys
	plan   plan

	seats    []*process
	fronts   []*front
	doors    map[int][]*faultproxy.Proxy // of clients, to each server
	register *register
	socket   string
	marks    marks
	stalls   stalls
	rounds   int
	rows     int // the rows of the servers before the run
	leaked   []check.Violation
	result   *Trial
}

// A plan has the random choices that are made before a trial.
type plan struct {
	keys       int
	permits    []int64
	goroutines []int // of each client
}

// marks are added by several goroutines.
type marks struct {
	mu  sync.Mutex
	all []history.Mark
}

func (m *marks) add(x history.Mark) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.all = append(m.all, x)
}

func (m *marks) now(what history.MarkWhat, text string) {
	m.add(history.Mark{At: history.Now(), What: what, Text: text})
}

func (r *runner) newTrial(f fault.Fault) *trial {
	id := fnv.New64a()
	_, _ = id.Write([]byte(f.ID)) // never fails
	t := &trial{runner: r, fault: f, rng: rand.New(rand.NewPCG(r.cfg.Seed, id.Sum64()))}
	t.dir = filepath.Join(r.dir, f.ID)
	// Another run may have the same seed on the same store: it must not use the same keys.
	t.prefix = fmt.Sprintf("baton-verify/%s-%d/%s/", driver.NewID()[:6], r.cfg.Seed, f.ID)
	if t.plan.keys = []int{1, 4, 64}[t.rng.IntN(3)]; r.cfg.keys != 0 {
		t.plan.keys = r.cfg.keys
	}
	for range 2 {
		t.plan.permits = append(t.plan.permits, 2+t.rng.Int64N(6))
	}
	for n := range r.cfg.Clients {
		t.seats = append(t.seats, &process{trial: t, seat: n})
		t.plan.goroutines = append(t.plan.goroutines, 1+t.rng.IntN(16))
	}
	t.result = &Trial{Fault: f.ID, Name: f.Name, Does: f.Does, Repeat: r.repeat(f.ID)}
	return t
}

func (t *trial) scene() *fault.Scene {
	s := &fault.Scene{Proxies: t.wires, Servers: t.place.servers, TTL: t.cfg.TTL, Rand: t.rng, Mark: t.marks.now, Silent: t.silent}
	for _, p := range t.seats {
		s.Clients = append(s.Clients, p)
	}
	s.Library = !t.fronted()
	for _, f := range t.fronts {
		if f.orders.Way == WayAgent {
			s.Agents = append(s.Agents, f)
		} else {
			s.Replicas = append(s.Replicas, f)
		}
	}
	return s
}

// silent implements fault.Scene's Silent.
func (t *trial) silent(seat int) (over func()) {
	client := 0
	if seat != fault.AllClients {
		client = t.seats[seat].now().client
	}
	t.marks.add(history.Mark{At: history.Now(), What: history.Silent, Client: client})
	return func() { t.marks.add(history.Mark{At: history.Now(), What: history.Answers, Client: client}) }
}

func (t *trial) orders(seat int) orders {
	o := orders{
		URL: t.place.url(seat), Seed: t.cfg.Seed, Goroutines: t.plan.goroutines[seat], TTL: t.cfg.TTL,
		Prefix: t.prefix, Keys: t.plan.keys, Permits: t.plan.permits, Brief: t.cfg.Brief, Register: t.socket, Defect: t.cfg.defect,
		Own: t.fault.Callers && seat%3 > 0, GoRedis: seat%3 == 2,
	}
	if is := t.programOf(seat); is.way != WayLibrary {
		o.URL = "" // and its secrets
		o.reach = &reach{
			Way: is.way, First: is.host, Wait: t.cfg.TTL + t.bound + time.Second, Ahead: history.Ahead(),
			Shared: t.traits.Shared, Permitted: t.traits.Permits,
		}
		if is.way == WayAgent {
			o.Socket = t.agentSocket(is.host)
		}
		for _, p := range t.doors[seat] {
			o.Replicas = append(o.Replicas, p.Addr)
		}
	}
	return o
}

// open starts all but the clients.
func (t *trial) open() error {
	if err := os.MkdirAll(t.dir, 0o700); err != nil {
		return err
	}
	if err := t.listen(); err != nil {
		return err
	}
	err := t.openFronts()
	if err != nil {
		t.register.close()
		t.closeFronts()
	}
	return err
}

// run makes the trial, after open. Its error is the reason why there is no verdict; violations
// are in the result.
func (t *trial) run(ctx context.Context) error {
	err := t.countRows()
	if err == nil {
		err = t.clients(ctx)
	}
	t.leaked = append(t.leaked, t.closeFronts()...)
	if err == nil {
		t.leaked = append(t.leaked, t.connections(ctx)...)
	}
	for _, p := range t.seats {
		if l := p.now(); l != nil {
			l.end()
		}
	}
	t.marks.now(history.Ends, "")
	writes := t.register.close()
	if ctx.Err() != nil {
		t.sweep()
		return context.Cause(ctx)
	}
	if err != nil { // the histories until then may still show something
		t.result.invalid("%v", err)
	}
	return t.judge(ctx, writes)
}

// listen starts the register, at a path that is short enough for a socket.
func (t *trial) listen() error {
	dir, err := os.MkdirTemp("", "bv")
	if err != nil {
		return err
	}
	if len(dir) > 80 {
		_ = os.Remove(dir) // it is empty
		if dir, err = os.MkdirTemp("/tmp", "bv"); err != nil {
			return err
		}
	}
	t.socket = filepath.Join(dir, "register")
	t.cleanup(func() { _ = os.RemoveAll(dir) })
	t.register, err = newRegister(t.socket)
	return err
}

// all calls f for all clients at the same time.
func (t *trial) all(f func(*process) error) error {
	errs := make([]error, len(t.seats))
	var wg sync.WaitGroup
	for i, p := range t.seats {
		wg.Go(func() { errs[i] = f(p) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

func (t *trial) order(d do) error {
	return t.all(func(p *process) error { return p.now().order(order{Do: d}) })
}

func (t *trial) await(ctx context.Context, s say) error {
	return t.all(func(p *process) error { return p.now().await(ctx, s, 1) })
}

// within is a context that ends after d with an error that says so.
func within(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %v", d.Round(time.Millisecond)))
}

// clients starts the clients and makes them work during the fault.
func (t *trial) clients(ctx context.Context) error {
	t.progress("starting %d clients", len(t.seats))
	opening, cancel := within(ctx, 2*openTimeout)
	defer cancel()
	err := t.all(func(p *process) error {
		l, err := p.start()
		if err != nil {
			return err
		}
		return l.await(opening, sayReady, 1)
	})
	if err != nil {
		return err
	}

	t.stalls.watch()
	defer t.stalls.end()
	t.marks.now(history.Begins, "")
	if err := t.order(doBegin); err != nil {
		return err
	}
	if err := t.breakThings(ctx); err != nil {
		return err
	}
	return t.wind(ctx)
}

// breakThings lets the clients work for the configured time, most of it with the fault.
func (t *trial) breakThings(ctx context.Context) error {
	began := time.Now()
	end := began.Add(t.cfg.For)
	calm := t.fault.ID == quiet || t.fault.Owed
	if calm { // liveness is owed from the beginning
		t.marks.now(history.Healed, "")
	}
	t.progress("warming up")
	sleep(ctx, min(3*time.Second, t.cfg.For/4))
	scene := t.scene()
	for ctx.Err() == nil && (t.rounds == 0 || time.Now().Before(end)) {
		t.progress("%s: %s", t.fault.Name, t.fault.Does)
		var err error
		failed := new(testserver.Site).Try(func() { err = t.fault.Run(ctx, scene) }) // proxies fail by a panic
		if err := errors.Join(err, failed); err != nil {
			return fmt.Errorf("%s: %w", t.fault.Name, err)
		}
		t.rounds++
		sleep(ctx, t.cfg.TTL/4+time.Duration(t.rng.Int64N(int64(t.cfg.TTL))))
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if !calm {
		t.marks.now(history.Healed, "")
	}
	return nil
}

// tokensPerGrant is the factor by which a Locker multiplies the store's tokens. The tokens of
// leases that it hands over among its callers are in between.
const tokensPerGrant = 64

// quiet is the ID of the fault without faults.
const quiet = "f01"

// wind ends the clients' work after the fault. Operations that do not end in time are in the
// history, for the checks.
func (t *trial) wind(ctx context.Context) error {
	patience := t.cfg.TTL + t.bound + 2*time.Second
	t.progress("all is whole: everybody who waits must get in")
	if err := t.order(doCalm); err != nil {
		return err
	}
	quiesce := time.Now().Add(2 * t.cfg.TTL)
	calm, cancel := within(ctx, patience)
	defer cancel()
	late := t.await(calm, sayCalm)
	sleep(ctx, time.Until(quiesce))

	t.progress("winding up")
	if err := t.order(doDrain); err != nil {
		return err
	}
	draining, cancel := within(ctx, patience)
	defer cancel()
	if err := t.await(draining, sayDraining); err != nil {
		return err
	}
	t.marks.now(history.Drains, "")
	if late == nil {
		late = t.await(draining, sayDrained)
	}
	if late == nil {
		late = t.count(ctx, patience)
	}
	if late == nil {
		t.leaked = append(t.leaked, t.rowsLeft(ctx)...)
	}
	// The result does not depend on the fault, so check it under one. A store in memory has
	// its data in the process, so skip it.
	if late == nil && t.fault.ID == quiet && t.traits.Processes && t.programOf(0).way == WayLibrary {
		late = t.weigh(ctx)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if late != nil { // the history shows the clients' requests
		if err := t.order(doGiveUp); err != nil {
			return err
		}
	}
	closing, cancel := within(ctx, patience+10*time.Second)
	defer cancel()
	if err := t.await(closing, sayDrained); err != nil {
		return err
	}
	if err := t.order(doClose); err != nil {
		return err
	}
	return t.await(closing, sayClosed)
}

// count makes one client take all permits.
func (t *trial) count(ctx context.Context, patience time.Duration) error {
	first := t.seats[0].now()
	if err := first.order(order{Do: doCount}); err != nil {
		return err
	}
	counting, cancel := within(ctx, patience)
	defer cancel()
	return first.await(counting, sayCounted, 1)
}

// weigh makes one client measure its memory after keys.
func (t *trial) weigh(ctx context.Context) error {
	first := t.seats[0].now()
	if err := first.order(order{Do: doWeigh}); err != nil {
		return err
	}
	weighing, cancel := within(ctx, bytesRounds*bytesPatient)
	defer cancel()
	return first.await(weighing, sayWeighed, 1)
}

// judge reads the histories and runs the checks.
func (t *trial) judge(ctx context.Context, writes []history.Write) error {
	t.progress("checking")
	h := &history.History{Writes: writes, Marks: t.marks.all}
	files, err := filepath.Glob(t.path("client-*.history"))
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := read(h, file); err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(file), err)
		}
	}
	h.Sort()
	rules := check.Rules{
		TTL: t.cfg.TTL, Bound: t.bound, Order: t.traits.FIFO, Limits: make(map[string]check.Limit),
		EqualReaders: t.traits.Store == "redlock",
		PerGrant:     tokensPerGrant,
		Explains:     2*t.cfg.TTL + t.bound,
		Keeps:        t.cfg.keeps || fault.Keeps(t.cfg.Local, t.fault.ID) && (!t.fronted() || t.fault.ID == quiet),
		Young:        driver.ClaimTTL,
		Always:       t.fault.Always,
		Trust:        !t.fronted(),
	}
	processes := len(t.seats) + len(h.Killed())
	for i := range h.Decisions {
		key := h.Decisions[i].Key
		if l, ok := limitOf(t.prefix, key, processes); ok {
			rules.Limits[key] = l
		}
	}
	findings := check.Run(h, rules)
	findings.Violations = append(findings.Violations, t.leaked...)
	findings.Violations = append(findings.Violations, t.locksLeft(ctx)...)
	findings.Violations = append(findings.Violations, t.keysLeft(ctx)...)
	findings.Violations = append(findings.Violations, t.shouts()...)
	t.result.fill(t, h, findings)
	return t.keep(h)
}

func read(h *history.History, file string) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	return h.Read(f)
}

// shouts collects the problems that the clients have reported and printed.
func (t *trial) shouts() (found []check.Violation) {
	at := t.marks.all[len(t.marks.all)-1].At
	shout := func(check check.Violation, format string, args ...any) {
		check.Text, check.From, check.To = fmt.Sprintf(format, args...), at, at
		found = append(found, check)
	}
	for _, p := range t.seats {
		l := p.now()
		l.mu.Lock()
		words := l.words
		l.mu.Unlock()
		for _, w := range words {
			first, _, _ := strings.Cut(w.Text, "\n")
			switch w.Say {
			case sayRunning, sayOpen, sayGrows:
				shout(check.Violation{Promise: check.Lively, Check: string(w.Say)}, "client %d: %s (see %s)", l.client, first, filepath.Base(l.log))
				_ = appendFile(l.log, w.Text) // the violation has the text, too
			case sayEvents: // under any fault, because it is about one process
				shout(check.Violation{Check: string(w.Say)}, "client %d: %s", l.client, w.Text)
			case sayTold:
				if err := t.result.Told.add(w.Text); err != nil {
					t.result.invalid("client %d: what it was told of: %v", l.client, err)
				}
			case sayFailed:
				t.result.invalid("client %d: %s", l.client, first)
			}
		}
	}
	files, _ := filepath.Glob(t.path("client-*")) // the pattern is right
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.result.invalid("%v", err)
			continue
		}
		name := filepath.Base(file)
		if strings.Contains(string(text), "WARNING: DATA RACE") {
			shout(check.Violation{Check: "race"}, "a data race: see %s", name)
		}
		for _, secret := range t.secrets {
			if strings.Contains(string(text), secret) {
				shout(check.Violation{Check: "secrets"}, "%s shows a secret of the store's URL", name)
			}
		}
	}
	return found
}

func appendFile(path, text string) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(text)
	return err
}

func sleep(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

var _ fault.Client = (*process)(nil)
