package sqlitestore

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
	"github.com/batonhq/baton/internal/testserver"
	"golang.org/x/sys/unix"
)

// The test binary runs itself as the other processes.
func TestMain(m *testing.M) {
	switch os.Getenv("SQLITESTORE_CHILD") {
	case "":
		os.Exit(m.Run())
	case "work":
		childWork()
	case "open":
		childOpen()
	case "stuck":
		childStuck()
	case "limit":
		childLimit()
	case "together":
		childTogether()
	default:
		panic("unknown child")
	}
}

// child starts the test binary as another process.
func child(t *testing.T, kind, path string, env ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "SQLITESTORE_CHILD="+kind, "SQLITESTORE_PATH="+path)
	cmd.Env = append(cmd.Env, env...)
	cmd.Stderr = os.Stderr
	t.Cleanup(func() {
		if cmd.Process != nil && cmd.ProcessState == nil {
			cmd.Process.Kill()
			cmd.Wait()
		}
	})
	return cmd
}

func childStore() *Store {
	s, err := Open(context.Background(), os.Getenv("SQLITESTORE_PATH"))
	if err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
	return s
}

// childOpen opens, acquires and releases a lock, and closes.
func childOpen() {
	s := childStore()
	c := driver.Claim{Key: "child", ID: driver.NewID(), Owner: "child", Weight: driver.Whole, Capacity: driver.Whole}
	g, err := s.Acquire(context.Background(), driver.Request{Claim: c, TTL: time.Minute})
	if err == nil {
		c.Ticket = g.Ticket
		err = s.Release(context.Background(), c)
	}
	if err = errors.Join(err, s.Close()); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		os.Exit(1)
	}
}

// childStuck stays in the middle of a transaction that has written.
func childStuck() {
	s := childStore()
	s.do(context.Background(), func(tx *tx) error {
		r := driver.Request{Claim: driver.Claim{Key: "stuck", ID: driver.NewID(), Owner: "stuck", Weight: driver.Whole, Capacity: driver.Whole}, TTL: time.Hour}
		if _, refused, err := sqlstore.Acquire(tx, r, &tx.fx); refused != nil || err != nil {
			panic("acquire")
		}
		fmt.Println("stuck")
		select {}
	})
}

// A holding is one line that a child writes: a time during which it believed
// that it held. Times are of CLOCK_MONOTONIC, which all processes share.
type holding struct {
	Process  int
	Key      string
	Weight   int64
	Capacity int64
	Token    int64
	Ticket   int64 // of the position, 0 if granted at once
	Sent     int64 // when the request left
	Told     int64 // when the answer "waiting" was here
	Begin    int64
	End      int64 // 0: it began, and no end is known
	Error    string
}

func monotonic() int64 {
	var ts unix.Timespec
	unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts)
	return ts.Nano()
}

const workTTL = 2 * time.Second

// childWork takes locks of every kind until its time is up.
func childWork() {
	s := childStore()
	process, _ := strconv.Atoi(os.Getenv("SQLITESTORE_PROCESS"))
	workers, _ := strconv.Atoi(os.Getenv("SQLITESTORE_WORKERS"))
	kinds := strings.Fields(os.Getenv("SQLITESTORE_KINDS"))
	// The end comes with the end of the standard input.
	ctx, stop := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	var mu sync.Mutex
	out := json.NewEncoder(os.Stdout)
	say := func(h holding) {
		h.Process = process
		mu.Lock()
		defer mu.Unlock()
		out.Encode(h) // one write each, so a killed process leaves whole lines
	}
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				work(ctx, s, kinds[rand.IntN(len(kinds))], say)
			}
		})
	}
	wg.Wait()
	if err := s.Close(); err != nil {
		say(holding{Error: err.Error()})
	}
}

// work is one acquisition: wait as the portable layer would, hold for a moment,
// sometimes renew, release; now and then give up or walk away.
func work(ctx context.Context, s *Store, kind string, say func(holding)) {
	c := driver.Claim{Key: kind, ID: driver.NewID(), Owner: "worker", Weight: driver.Whole, Capacity: driver.Whole}
	switch {
	case strings.HasPrefix(kind, "rw") && rand.IntN(4) > 0:
		c.Weight = 1
	case strings.HasPrefix(kind, "permits"):
		c.Weight, c.Capacity = 1+rand.Int64N(2), 4
	}
	h := holding{Key: c.Key, Weight: c.Weight, Capacity: c.Capacity}
	bad := func(what string, err error) {
		bad := h
		bad.Error, bad.End = what+": "+err.Error(), 0
		say(bad)
	}
	calm := os.Getenv("SQLITESTORE_CALM") != ""
	if !calm && rand.IntN(10) == 0 { // an impatient one
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, time.Duration(rand.IntN(30))*time.Millisecond)
		defer cancel()
	}
	hints := make(chan driver.Hint, 16)
	stop := s.Watch(c, func(h driver.Hint) {
		select {
		case hints <- h:
		default:
		}
	})
	defer stop()
	release := func() error { return s.Release(context.WithoutCancel(ctx), c) }

	h.Sent = monotonic()
	g, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: workTTL, Queue: true})
	if err != nil {
		if ctx.Err() == nil {
			bad("acquire", err)
		}
		release() // what an unanswered request may have left
		return
	}
	c.Ticket = g.Ticket
	sent := h.Sent
	if g.Waiting {
		h.Ticket, h.Told = g.Ticket, monotonic()
	}
	for g.Waiting {
		again := g.Again
		if again == 0 {
			again = driver.RefreshEvery
		}
		select {
		case <-hints:
		case <-time.After(again):
		case <-ctx.Done():
			if err := release(); err != nil && !errors.Is(err, driver.ErrLost) {
				bad("giving up", err)
			}
			return
		}
		sent = monotonic()
		r := s.Renew(context.WithoutCancel(ctx), []driver.Claim{c}, workTTL)[0]
		switch r.State {
		case driver.Unknown:
			bad("renew", r.Err)
			return
		case driver.Lost: // a machine this slow costs a position, and no more
			return
		}
		g, c.Ticket = r.Grant, r.Grant.Ticket
	}
	trust := sent + int64(workTTL) - int64(workTTL)/10
	h.Token = g.Token
	if h.Token < h.Ticket {
		bad("token", fmt.Errorf("%d is below the ticket %d", h.Token, h.Ticket))
	}
	if h.Begin = monotonic(); h.Begin >= trust {
		release()
		return
	}
	say(h)
	if c.Exclusive() {
		if err := fenced(os.Getenv("SQLITESTORE_PATH")+"-"+kind, h.Token, func() bool { return monotonic() < trust }); err != nil {
			bad("fenced register", err)
		}
	}
	if !calm {
		time.Sleep(time.Duration(rand.IntN(2000)) * time.Microsecond) // the work that the lock is for
	}
	h.End = min(monotonic(), trust)
	say(h)
	if !calm && rand.IntN(300) == 0 {
		return // walk away: it has to expire
	}
	if err := release(); err != nil && !errors.Is(err, driver.ErrLost) {
		bad("release", err)
	}
}

// fenced writes the token to a register that must never have seen a higher
// one, as long as trusted says that the lock is held.
func fenced(path string, token int64, trusted func() bool) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	if last, _ := strconv.ParseInt(string(old), 10, 64); last >= token && trusted() {
		return fmt.Errorf("it has seen %d, the holder comes with %d", last, token)
	}
	if !trusted() {
		return nil
	}
	tmp := fmt.Sprintf("%s.%d", path, token)
	if err := os.WriteFile(tmp, strconv.AppendInt(nil, token, 10), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

// crew is a number of processes at work on one file.
type crew struct {
	t     *testing.T
	path  string
	env   []string
	mu    sync.Mutex
	all   []holding
	next  int
	wg    sync.WaitGroup
	stops map[int]func()
	kills map[int]int64
	cmds  map[int]*exec.Cmd
}

func newCrew(t *testing.T, env ...string) *crew {
	return &crew{
		t: t, path: filepath.Join(t.TempDir(), "locks.db"), env: env,
		stops: map[int]func(){}, kills: map[int]int64{}, cmds: map[int]*exec.Cmd{},
	}
}

func (c *crew) start() int {
	c.t.Helper()
	n := c.next
	c.next++
	cmd := child(c.t, "work", c.path, append(c.env, "SQLITESTORE_PROCESS="+strconv.Itoa(n))...)
	in, err1 := cmd.StdinPipe()
	out, err2 := cmd.StdoutPipe()
	if err := errors.Join(err1, err2, cmd.Start()); err != nil {
		c.t.Fatal(err)
	}
	c.stops[n] = sync.OnceFunc(func() { in.Close() })
	c.cmds[n] = cmd
	c.wg.Go(func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var h holding
			if err := json.Unmarshal(lines.Bytes(), &h); err != nil {
				c.t.Errorf("process %d wrote %q", n, lines.Text())
				continue
			}
			c.mu.Lock()
			c.all = append(c.all, h)
			c.mu.Unlock()
		}
	})
	return n
}

func (c *crew) kill(n int) {
	c.cmds[n].Process.Kill()
	c.mu.Lock()
	c.kills[n] = monotonic()
	c.mu.Unlock()
}

func (c *crew) grants() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, h := range c.all {
		if h.End != 0 {
			n++
		}
	}
	return n
}

// stop ends the work and returns what every process said.
func (c *crew) stop() []holding {
	c.t.Helper()
	for _, stop := range c.stops {
		stop()
	}
	c.wg.Wait()
	for n, cmd := range c.cmds {
		if err := cmd.Wait(); err != nil && c.kills[n] == 0 {
			c.t.Errorf("process %d: %v", n, err)
		}
	}
	// A holding without an end ended when its process was killed, or soon.
	ended := map[[2]any]bool{}
	for _, h := range c.all {
		if h.End != 0 {
			ended[[2]any{h.Key, h.Token}] = true
		}
	}
	var whole []holding
	for _, h := range c.all {
		switch {
		case h.Error != "":
			c.t.Errorf("process %d, %q: %s", h.Process, h.Key, h.Error)
		case h.End != 0:
			whole = append(whole, h)
		case !ended[[2]any{h.Key, h.Token}]:
			h.End = max(h.Begin, min(c.kills[h.Process], h.Begin+int64(workTTL)/2))
			whole = append(whole, h)
		}
	}
	return whole
}

// judge finds holdings that overlap, tokens out of order, and waiters who
// were overtaken.
func judge(t *testing.T, all []holding) {
	t.Helper()
	keys := map[string][]holding{}
	for _, h := range all {
		keys[h.Key] = append(keys[h.Key], h)
	}
	for key, hs := range keys {
		slices.SortFunc(hs, func(a, b holding) int { return int(a.Begin - b.Begin) })
		for i, a := range hs {
			used := a.Weight
			for _, b := range hs[:i] {
				if b.Token == a.Token {
					t.Errorf("%q: token %d was given twice", key, a.Token)
				}
				if b.End > a.Begin { // b holds when a begins
					if used += b.Weight; b.Capacity != a.Capacity || used > a.Capacity {
						t.Errorf("%q: overlap of %d %v with %+v", key, used, a, b)
					}
				} else if b.Token > a.Token && (b.End < a.Sent || b.Capacity != a.Capacity || b.Weight+a.Weight > a.Capacity) {
					// Claims that can hold together may be granted by one commit and
					// learn of it in any order.
					t.Errorf("%q: token %d ended before token %d began", key, b.Token, a.Token)
				}
			}
			for _, b := range hs {
				if a.Told != 0 && a.Told < b.Sent && a.Token > b.Token {
					t.Errorf("%q: %+v was overtaken by %+v", key, a, b)
				}
			}
		}
	}
}

// Eight processes take locks of every kind from one file, wait, give up, walk
// away and are killed.
func TestProcesses(t *testing.T) {
	t.Parallel()
	goal, kills := 900, 3
	if testing.Short() {
		goal, kills = 300, 1
	}
	c := newCrew(t, "SQLITESTORE_WORKERS=3", "SQLITESTORE_KINDS=exclusive-1 exclusive-2 rw permits")
	for range 8 {
		c.start()
	}
	deadline := time.Now().Add(4 * time.Minute)
	for k := range kills {
		await(t, deadline, "the processes make progress", func() bool { return c.grants() >= goal*(k+1)/(kills+1) })
		c.kill(2 * k)
		c.start()
	}
	await(t, deadline, "the processes make progress after the kills", func() bool { return c.grants() >= goal })
	all := c.stop()
	judge(t, all)
	waited := 0
	for _, h := range all {
		if h.Told != 0 {
			waited++
		}
	}
	t.Logf("%d grants, %d of them from the queue", len(all), waited)
	if waited == 0 {
		t.Error("no process ever waited: the test tests nothing")
	}
	sound(t, openAt(t, c.path))
}

// Processes that do nothing but acquire one lock are served one after the other.
func TestProcessesAreServedEvenly(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	c := newCrew(t, "SQLITESTORE_WORKERS=1", "SQLITESTORE_KINDS=exclusive", "SQLITESTORE_CALM=1")
	for range 8 {
		c.start()
	}
	deadline := time.Now().Add(60 * time.Second)
	await(t, deadline, "grants", func() bool { return c.grants() >= 400 })
	all := c.stop()
	judge(t, all)
	// From when all are there until the first is asked to end.
	first, last := make([]int64, 8), make([]int64, 8)
	for _, h := range all {
		if first[h.Process] == 0 || h.Begin < first[h.Process] {
			first[h.Process] = h.Begin
		}
		last[h.Process] = max(last[h.Process], h.Begin)
	}
	from, to := slices.Max(first), slices.Min(last)
	served := make([]int, 8)
	for _, h := range all {
		if h.Begin >= from && h.Begin <= to {
			served[h.Process]++
		}
	}
	t.Logf("served %v", served)
	if most, least := slices.Max(served), slices.Min(served); most > 2*least+2 {
		t.Errorf("one process got %d grants, another %d: %v", most, least, served)
	}
}

// sound asserts that the database is not damaged.
func sound(t *testing.T, s *Store) {
	t.Helper()
	var verdict string
	if err := s.readers.QueryRow("PRAGMA integrity_check").Scan(&verdict); err != nil || verdict != "ok" {
		t.Errorf("integrity: %q, %v", verdict, err)
	}
}

func await(t *testing.T, deadline time.Time, what string, ok func() bool) {
	t.Helper()
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within the time", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
