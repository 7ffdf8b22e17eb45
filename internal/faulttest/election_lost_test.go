//go:build linux

package faulttest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/internal/faultproxy"
)

// A stander stands for election until it is told to end, and keeps what it
// believes. Its leaderships last until they are resigned.
type stander struct {
	led   chan *election.Leadership // as it begins to lead
	end   context.CancelFunc
	ended chan error

	mu      sync.Mutex
	beliefs []belief
	now     *election.Leadership
}

func stand(t *testing.T, locks *baton.Locker, name, who string) *stander {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &stander{led: make(chan *election.Leadership, 1000), end: cancel, ended: make(chan error, 1)}
	c := election.Candidate{Locks: locks, Name: name, Value: who, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))}
	go func() {
		s.ended <- c.Run(ctx, func(_ context.Context, l *election.Leadership) error {
			if !l.IsLeader() {
				return nil
			}
			s.mu.Lock()
			s.now = l
			s.beliefs = append(s.beliefs, belief{token: l.Token(), begun: boottime(), who: who})
			mine := &s.beliefs[len(s.beliefs)-1]
			s.mu.Unlock()
			s.led <- l
			for range time.Tick(time.Millisecond) {
				now := boottime() // before the look: it believed until then
				if !l.IsLeader() {
					return nil
				}
				s.mu.Lock()
				mine.last = now
				s.mu.Unlock()
			}
			return nil
		})
	}()
	t.Cleanup(cancel)
	return s
}

// leads waits until it begins to lead.
func (s *stander) leads(t *testing.T, within time.Duration) *election.Leadership {
	t.Helper()
	select {
	case l := <-s.led:
		return l
	case err := <-s.ended:
		t.Fatalf("it stands no more: %v", err)
	case <-time.After(within):
		t.Fatalf("it does not lead after %v", within)
	}
	return nil
}

// leadsAfter waits until it leads, though another may be first, again and again where
// the store keeps no queue.
func (s *stander) leadsAfter(t *testing.T, other *stander, within time.Duration) *election.Leadership {
	t.Helper()
	for deadline := time.After(within); ; {
		select {
		case l := <-s.led:
			return l
		case l := <-other.led:
			l.Resign()
		case <-deadline:
			t.Fatalf("it does not lead after %v", within)
		}
	}
}

// stops has it stand no more, and waits until it has ended.
func (s *stander) stops(t *testing.T) {
	t.Helper()
	s.end()
	select {
	case err := <-s.ended:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("Run: %v", err)
		}
	case <-time.After(60 * time.Second):
		t.Fatal("Run does not return")
	}
}

func believedBy(all ...*stander) (beliefs []belief) {
	for _, s := range all {
		s.mu.Lock()
		beliefs = append(beliefs, s.beliefs...)
		s.mu.Unlock()
	}
	return beliefs
}

// eventually waits for what must come to be.
func eventually(t *testing.T, what string, within time.Duration, so func() bool) {
	t.Helper()
	for deadline := time.Now().Add(within); !so(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("after %v: not so: %s", within, what)
		}
	}
}

// awaitLine waits until the store has that many holders and waiters, as seen by a
// client whose answers are not lost.
func awaitLine(t *testing.T, locks *baton.Locker, key string, holders, waiters int, within time.Duration) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d holders, %d waiters", holders, waiters), within, func() bool {
		info, err := locks.Inspect(t.Context(), key)
		return err == nil && len(info.Holders) == holders && len(info.Waiters) == waiters
	})
}

// Each request that a candidate or an observer makes loses its answer, one after the
// other: in the nth round the nth request of each step, until no step makes that many.
func TestElectionLosesAnswers(t *testing.T) {
	const ttl = 20 * time.Second // nothing here waits for the end of one
	t.Parallel()
	for name, store := range networked {
		t.Run(name, func(t *testing.T) {
			mostlyLong(t, name)
			t.Parallel()
			direct, open := store(t)
			r := &losingRound{
				ttl: ttl, plain: newLocker(t, direct, baton.Config{TTL: ttl}),
				mine: newLossy(t, open), eyes: newLossy(t, open), seen: map[string]int{},
				other: newLossy(t, func() (string, []*faultproxy.Proxy) { return direct, nil }),
			}
			r.play(t, t.Name()+"/warm", none) // connections, scripts, and what else is made once
			for nth := 1; r.play(t, fmt.Sprint(t.Name(), "/", nth), nth); nth++ {
				if nth == 20 {
					t.Fatal("the steps do not end")
				}
			}
			t.Logf("answers lost: %v", r.seen)
			steps := []string{"elected", "observing", "renewing", "resigning", "standing", "waiting", "ending"}
			if _, ok := r.mine.Store.(driver.Renamer); ok {
				steps = append(steps, "publishing")
			}
			for _, step := range steps {
				if r.seen[step] == 0 {
					t.Errorf("%s: no answer was lost", step)
				}
			}
		})
	}
}

// A losingRound is a life of two candidates, of which one loses an answer at
// each step, and an observer, which does too.
type losingRound struct {
	ttl        time.Duration
	plain      *baton.Locker // of the test
	mine, eyes *lossy        // of the one candidate and of the observer
	other      *lossy        // of the other candidate, which loses nothing
	seen       map[string]int
}

func (r *losingRound) locker(t *testing.T, s *lossy) *baton.Locker {
	t.Helper()
	var store driver.Locks = s
	if renamer, ok := s.Store.(driver.Renamer); ok {
		store = lossyRenamer{s, renamer}
	}
	l, err := baton.New(store, baton.Config{TTL: r.ttl})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// A lossyRenamer is one whose holders may change their owner.
type lossyRenamer struct {
	*lossy
	renamer driver.Renamer
}

func (s lossyRenamer) Rename(ctx context.Context, c driver.Claim, owner string) (err error) {
	s.around("rename", c.Key, func() error { err = s.renamer.Rename(ctx, c, owner); return err })
	return err
}

// play returns whether any answer was lost.
func (r *losingRound) play(t *testing.T, name string, nth int) (lost bool) {
	within := r.ttl * 3 / 4 // whatever comes by then has not waited for a TTL
	count := func(step string, l *loss) {
		t.Helper()
		if l.happened(t) {
			lost = true
			r.seen[step]++
		}
	}
	another := func(s *lossy, call string) (is func()) {
		n := s.answered(call)
		return func() {
			t.Helper()
			eventually(t, call+" is answered", within, func() bool { return s.answered(call) > n })
		}
	}

	// Elected, and the value published with it.
	l := r.mine.lose("acquire", nth, after)
	one := stand(t, r.locker(t, r.mine), name, "one")
	count("elected", l)
	first := one.leads(t, within)
	if term, err := election.Leader(t.Context(), r.plain, name); err != nil || term.Value != "one" || term.Token != first.Token() && term.Token != 0 {
		t.Errorf("%d: the store shows %+v, %v; one leads with token %d", nth, term, err, first.Token())
	}
	awaitLine(t, r.plain, name, 1, 0, within)

	// An observer sees it, whatever it loses.
	l = r.eyes.lose("inspect", nth, after)
	terms := watchTerms(t, r.locker(t, r.eyes), name)
	count("observing", l)
	terms.await(t, "one", first.Token(), within)

	// Renewed: the leadership stands.
	l, answered := r.mine.lose("renew", nth, after), another(r.mine, "renew")
	r.mine.wake()
	count("renewing", l)
	answered()
	if !first.IsLeader() {
		t.Errorf("%d: lost by an answer to a renewal: %v", nth, first.Err())
	}

	// Published: the observer sees it, and the leadership stands.
	if _, ok := r.mine.Store.(driver.Renamer); ok {
		l = r.mine.lose("rename", nth, after)
		if err := first.Publish(t.Context(), "one, ready"); err != nil {
			t.Errorf("%d: publish: %v", nth, err)
		}
		count("publishing", l)
		terms.await(t, "one, ready", first.Token(), within)
		if !first.IsLeader() {
			t.Errorf("%d: lost by an answer to what it published: %v", nth, first.Err())
		}
	}

	// Resigned: the next one leads, and this one stands behind it once.
	two := stand(t, r.locker(t, r.other), name, "two")
	awaitLine(t, r.plain, name, 1, 1, within)
	l, again := r.mine.lose("release", nth, after), r.mine.lose("acquire", nth, after)
	first.Resign()
	count("resigning", l)
	count("standing", again)
	second := two.leadsAfter(t, one, within)
	awaitLine(t, r.plain, name, 1, 1, within)
	terms.await(t, "two", second.Token(), within)

	// Waiting.
	l, answered = r.mine.lose("renew", nth, after), another(r.mine, "renew")
	r.mine.wake()
	count("waiting", l)
	answered()
	awaitLine(t, r.plain, name, 1, 1, within)

	// Elected while it is cut off: what the store says of it is not heard.
	for _, p := range r.mine.proxies {
		p.Refuse()
		p.Cut()
	}
	released := another(r.other, "release")
	second.Resign()
	released()
	for _, p := range r.mine.proxies {
		p.Accept()
	}
	third := one.leadsAfter(t, two, within) // another may have been granted first
	terms.await(t, "one", third.Token(), within)
	awaitLine(t, r.plain, name, 1, 1, within)

	// Ended: what was not done is done again.
	l = r.mine.lose("release", nth, before)
	one.stops(t)
	count("ending", l)
	two.leads(t, within)
	two.stops(t)
	awaitLine(t, r.plain, name, 0, 0, leftWithin(r.mine))
	terms.await(t, "", 0, within)
	if all := believedBy(one, two); len(all) < 4 {
		t.Errorf("%d: %d leaderships: %v", nth, len(all), all)
	} else if problems := checkBeliefs(all); len(problems) > 0 {
		t.Errorf("%d: %v", nth, problems)
	}
	return lost
}

// terms is what an observer sees.
type terms struct {
	mu   sync.Mutex
	last election.Term
	some bool
	errs []error
}

func watchTerms(t *testing.T, locks *baton.Locker, name string) *terms {
	seen, ended := &terms{}, make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer close(ended)
		for term, err := range election.Observe(ctx, locks, name) {
			seen.mu.Lock()
			if err != nil {
				seen.errs = append(seen.errs, err)
			} else {
				seen.last, seen.some = term, true
			}
			seen.mu.Unlock()
		}
	}()
	t.Cleanup(func() { cancel(); <-ended })
	return seen
}

func (s *terms) is(value string, token int64) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.some && s.last.Led == (value != "") && s.last.Value == value && (s.last.Token == token || s.last.Token == 0)
}

func (s *terms) await(t *testing.T, value string, token int64, within time.Duration) {
	t.Helper()
	eventually(t, fmt.Sprintf("%q is observed", value), within, func() bool { return s.is(value, token) })
}
