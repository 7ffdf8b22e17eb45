//go:build linux

package faulttest

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

// boottime is a clock that all processes of the machine share and that does not
// stand still while it is suspended.
func boottime() int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic(err)
	}
	return ts.Nano()
}

// A belief is one leadership as its leader believed in it: certainly from begun
// until last, by the common clock.
type belief struct {
	token, begun, last int64
	who                string
}

// beliefs of a process are kept in a file, 24 bytes each, so that the last is
// known of a process that was killed.
func readBeliefs(t *testing.T, file string) (all []belief) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for ; len(raw) >= 24; raw = raw[24:] {
		n := func(i int) int64 { return int64(binary.NativeEndian.Uint64(raw[8*i:])) }
		all = append(all, belief{n(0), n(1), n(2), filepath.Base(file)})
	}
	return all
}

// checkBeliefs says what is wrong with the leaderships of an election: two
// that were believed in at one instant, or a token that did not rise.
func checkBeliefs(all []belief) (problems []string) {
	all = slices.SortedFunc(slices.Values(all), func(a, b belief) int { return cmp.Compare(a.begun, b.begun) })
	for i, b := range all {
		for _, a := range all[:i] {
			if a.last >= b.begun {
				problems = append(problems, fmt.Sprintf("%s with token %d and %s with token %d believed together for %v",
					a.who, a.token, b.who, b.token, time.Duration(min(a.last, b.last)-b.begun)))
			}
			if a.token >= b.token {
				problems = append(problems, fmt.Sprintf("token %d of %s came after token %d of %s", b.token, b.who, a.token, a.who))
			}
		}
	}
	return problems
}

func TestCheckBeliefs(t *testing.T) {
	for _, c := range []struct {
		name string
		all  []belief
		want string
	}{
		{"in turn", []belief{{3, 30, 40, "a"}, {1, 10, 20, "a"}, {2, 21, 29, "b"}}, ""},
		{"together", []belief{{1, 10, 25, "a"}, {2, 24, 30, "b"}}, "believed together for 1ns"},
		{"for one instant", []belief{{1, 10, 24, "a"}, {2, 24, 30, "b"}}, "believed together"},
		{"one within another, long ago", []belief{{1, 10, 90, "a"}, {2, 20, 30, "b"}, {3, 40, 50, "c"}}, "b with token 2"},
		{"a token again", []belief{{1, 10, 20, "a"}, {1, 21, 29, "b"}}, "token 1 of b came after token 1 of a"},
		{"a lower token", []belief{{2, 10, 20, "a"}, {1, 21, 29, "b"}}, "token 1 of b came after token 2 of a"},
	} {
		if got := strings.Join(checkBeliefs(c.all), "\n"); (got == "") != (c.want == "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: found %q, want %q", c.name, got, c.want)
		}
	}
}

const candidateEnv = "BATON_FAULTTEST_CANDIDATE"

// candidateMain stands for election until its input ends, and keeps what it
// believes in a file. With believe it believes, once elected, whatever its
// leadership says: the defect that the check is there for.
func candidateMain(url, name, ttl, file string, believe bool) error {
	d, err := time.ParseDuration(ttl)
	if err != nil {
		return err
	}
	run, cancel := context.WithCancel(context.Background())
	defer cancel()
	store, err := open.Store(run, url)
	if err != nil {
		return err
	}
	locks, err := baton.New(store, baton.Config{TTL: d})
	if err != nil {
		return err
	}
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	c := election.Candidate{Locks: locks, Name: name, Value: filepath.Base(file)}
	at := int64(0)
	return c.Run(run, func(_ context.Context, l *election.Leadership) error {
		if !l.IsLeader() {
			return nil
		}
		var b [24]byte
		binary.NativeEndian.PutUint64(b[0:], uint64(l.Token()))
		binary.NativeEndian.PutUint64(b[8:], uint64(boottime())) // after the first look
		defer func() { at += 24 }()
		for range time.Tick(time.Millisecond) {
			// The clock is read before the look: the belief lasted until then.
			now := boottime()
			if run.Err() != nil || !believe && !l.IsLeader() {
				return nil
			}
			binary.NativeEndian.PutUint64(b[16:], uint64(now))
			if _, err := out.WriteAt(b[:], at); err != nil {
				return err
			}
		}
		return nil
	})
}

// A contest is an election that several processes stand for.
type contest struct {
	url   string
	ttl   time.Duration
	dir   string
	locks *baton.Locker
	all   map[string]*exec.Cmd
	end   []func()
}

func newContest(t *testing.T, url string, ttl time.Duration) *contest {
	return &contest{url: url, ttl: ttl, dir: t.TempDir(), locks: newLocker(t, url, baton.Config{TTL: ttl}), all: map[string]*exec.Cmd{}}
}

// join starts a candidate.
func (c *contest) join(t *testing.T, who string, believe bool) {
	t.Helper()
	cmd := exec.Command(os.Args[0], t.Name(), c.ttl.String(), filepath.Join(c.dir, who), fmt.Sprint(believe))
	cmd.Env = append(os.Environ(), candidateEnv+"="+c.url)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe() // closed when this process ends, however
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	c.all[who] = cmd
	c.end = append(c.end, func() { in.Close() })
	t.Cleanup(func() {
		in.Close()
		cmd.Process.Kill()
		cmd.Wait()
	})
}

func (c *contest) signal(t *testing.T, who string, s syscall.Signal) {
	t.Helper()
	if err := c.all[who].Process.Signal(s); err != nil {
		t.Fatal(err)
	}
}

// leaderAfter waits until an observer has seen a leader other than who that
// believes it is one.
func (c *contest) leaderAfter(t *testing.T, seen <-chan election.Term, who string) (leader election.Term) {
	t.Helper()
	deadline := time.After(60 * time.Second)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		select {
		case leader = <-seen:
		case <-look.C:
			if leader.Led && leader.Value != who && c.believed(t, leader) {
				return leader
			}
		case <-deadline:
			t.Fatalf("no leader after %q", who)
		}
	}
}

// believed reports whether a leader has believed in itself.
func (c *contest) believed(t *testing.T, leader election.Term) bool {
	t.Helper()
	file := filepath.Join(c.dir, leader.Value)
	if _, err := os.Stat(file); err != nil {
		return false
	}
	of := readBeliefs(t, file)
	return len(of) > 0 && (leader.Token == 0 || of[len(of)-1].token == leader.Token)
}

// awaitOverlap waits until the older leader has written down that it goes on
// believing.
func (c *contest) awaitOverlap(t *testing.T, older, newer election.Term) {
	t.Helper()
	of := func(leader election.Term) belief {
		all := readBeliefs(t, filepath.Join(c.dir, leader.Value))
		return all[len(all)-1]
	}
	for deadline := time.Now().Add(30 * time.Second); of(older).last <= of(newer).begun; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s does not go on", older.Value)
		}
	}
}

// watchLeaders sends what an observer sees.
func (c *contest) watchLeaders(t *testing.T) <-chan election.Term {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	seen, ended := make(chan election.Term, 1000), make(chan struct{})
	go func() {
		defer close(ended)
		for term, err := range election.Observe(ctx, c.locks, t.Name()) {
			if err != nil {
				t.Logf("observing: %v", err)
				continue
			}
			seen <- term
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return seen
}

// stop stops a candidate. Where a server decides, it does so at any moment, but not
// while the candidate writes to a file: one process after the other writes it, and one
// that is stopped in the middle keeps all others out until it goes on. Here it goes on
// only when there is another leader.
func (c *contest) stop(t *testing.T, who string) {
	t.Helper()
	if !strings.HasPrefix(c.url, "sqlite:") {
		c.signal(t, who, syscall.SIGSTOP)
		return
	}
	write := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		lease, err := c.locks.TryLock(ctx, t.Name()+"/others write")
		if err != nil {
			return err
		}
		return lease.Unlock()
	}
	for range 20 {
		c.signal(t, who, syscall.SIGSTOP)
		err := write(c.ttl / 2)
		if err == nil {
			return
		}
		t.Logf("others do not write while %s stands still: %v", who, err)
		c.signal(t, who, syscall.SIGCONT)
		eventually(t, "others write again", 20*time.Second, func() bool { return write(c.ttl/2) == nil })
	}
	t.Fatalf("the others never write while %s stands still", who)
}

// play has the leader killed, and the next one stopped until there is another; it
// returns what all candidates believed. within is how long the election of the next
// leader may take after a crash.
func (c *contest) play(t *testing.T, within time.Duration, believe bool) (all []belief) {
	t.Helper()
	for i := range 4 {
		c.join(t, fmt.Sprint("candidate ", i), believe)
	}
	awaitWaiters(t, c.locks, t.Name(), 3)
	seen := c.watchLeaders(t)
	first := c.leaderAfter(t, seen, "")

	killed := time.Now()
	c.signal(t, first.Value, syscall.SIGKILL)
	second := c.leaderAfter(t, seen, first.Value)
	// The rest of the bound is for a busy machine.
	if d := time.Since(killed); d > within+5*time.Second {
		t.Errorf("the next leader came %v after the crash, want at most %v", d, within)
	}

	c.stop(t, second.Value)
	third := c.leaderAfter(t, seen, second.Value)
	c.signal(t, second.Value, syscall.SIGCONT)
	if believe {
		c.awaitOverlap(t, second, third)
	} else {
		// Time for the one that was stopped to make a mistake.
		<-time.After(c.ttl / 2)
	}
	if now, err := election.Leader(t.Context(), c.locks, t.Name()); err == nil && now.Token < third.Token {
		t.Errorf("observed token %d, and the store says %d", third.Token, now.Token)
	}
	for _, end := range c.end {
		end()
	}
	for who, cmd := range c.all {
		late := time.AfterFunc(30*time.Second, func() {
			t.Errorf("%s does not end", who)
			cmd.Process.Kill()
		})
		_ = cmd.Wait() // some were killed
		late.Stop()
		file := filepath.Join(c.dir, who)
		if _, err := os.Stat(file); err == nil {
			all = append(all, readBeliefs(t, file)...)
		}
	}
	return all
}

// Leaders are killed and stopped: no two believe at one instant, tokens rise, a
// new leader comes in time and observers see it.
func TestElection(t *testing.T) {
	t.Parallel()
	const ttl = 2 * time.Second // the shortest that all stores accept
	contest := func(t *testing.T, url string, ttl, within time.Duration) {
		all := newContest(t, url, ttl).play(t, within, false)
		for _, problem := range checkBeliefs(all) {
			t.Error(problem)
		}
		if len(all) < 3 {
			t.Errorf("there were only %d leaderships", len(all))
		}
	}
	onStores(t, func(t *testing.T, url string) { contest(t, url, ttl, ttl+3*time.Second) })
	t.Run("zookeeper", func(t *testing.T) { // a crash costs the session, and a tick
		testserver.Long(t)
		t.Parallel()
		contest(t, "zk://"+testserver.ZooKeeper(t, "tickTime=200").Addr+"/election?session=4s", ttl, 2*ttl+3*time.Second)
	})
}

// Leaders that believe in spite of what they are told are caught.
func TestElectionOfBelievers(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	c := newContest(t, stores["sqlite"](t), 2*time.Second)
	if problems := checkBeliefs(c.play(t, 5*time.Second, true)); len(problems) == 0 || !strings.Contains(problems[0], "believed together") {
		t.Errorf("found only %q", problems)
	}
}
