package lockstate

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/batonhq/baton/driver"
)

// world drives one key and checks after every step what must hold for ever.
type world struct {
	fatalf func(format string, args ...any)
	now    time.Duration
	tokens Counter
	s      *State
	drawn  int64                   // the highest token seen so far
	grants map[string]driver.Grant // the last answer "held" for each ID
}

func newWorld(fatalf func(string, ...any)) *world {
	w := &world{fatalf: fatalf, now: 30 * 365 * 24 * time.Hour, grants: map[string]driver.Grant{}}
	w.s = New("k", &w.tokens)
	return w
}

// alive lists the IDs of the waiters that have not ended, in order.
func (w *world) alive() []string {
	var ids []string
	for c := range w.s.queue.all {
		if c.end > w.now {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

func (w *world) holding(id string) bool {
	c := w.s.claims[id]
	return c != nil && c.held && c.end > w.now
}

// step runs op and checks the state around it. own is the ID that op is
// about.
func (w *world) step(own string, op func()) {
	before, heldBefore := w.alive(), map[string]bool{}
	for id := range w.s.claims {
		heldBefore[id] = w.holding(id)
	}
	highest := w.drawn
	op()

	s := w.s
	// The lists, the map and the sum agree, and no claim has ended.
	var used, lastTicket int64
	n := 0
	for c := range s.holders.all {
		used += c.Weight
		n++
		if !c.held || s.claims[c.ID] != c {
			w.fatalf("holder %q is not what the map says", c.ID)
		}
		if c.end <= w.now {
			w.fatalf("holder %q has ended and still holds", c.ID)
		}
		if c.end < s.noEndTil {
			w.fatalf("a holder ends before noEndTil")
		}
		if c.Capacity != s.holders.first.Capacity {
			w.fatalf("holders of capacity %d and %d", c.Capacity, s.holders.first.Capacity)
		}
		if c.token <= lastTicket {
			w.fatalf("holders are not in the order of their tokens")
		}
		lastTicket = c.token
	}
	if used != s.used {
		w.fatalf("used = %d, want %d", s.used, used)
	}
	if n > 0 && used > s.holders.first.Capacity {
		w.fatalf("%d of %d are held", used, s.holders.first.Capacity)
	}
	lastTicket = 0
	for c := range s.queue.all {
		n++
		if c.held || c.token != 0 || s.claims[c.ID] != c {
			w.fatalf("waiter %q is not what the map says", c.ID)
		}
		if c.end <= w.now || c.end > w.now+driver.WaiterTTL {
			w.fatalf("waiter %q ends at %v, now %v", c.ID, c.end, w.now)
		}
		if c.ticket <= lastTicket {
			w.fatalf("the queue is not in the order of the tickets")
		}
		lastTicket = c.ticket
	}
	var end time.Duration
	ages := 0
	for c := range s.ageing.all {
		ages++
		if c.end < end {
			w.fatalf("the ageing list is not in the order of the ends")
		}
		end = c.end
	}
	if n != len(s.claims) || s.queue.len != ages || s.holders.len+s.queue.len != n {
		w.fatalf("%d claims, %d in the map, %d ageing", n, len(s.claims), ages)
	}
	// Work is conserved.
	if c := s.queue.first; c != nil && s.fits(c.Claim) {
		w.fatalf("the head of the queue fits and waits")
	}
	// First come, first served: behind a claim that is alive and still waits, none was
	// granted.
	waitingBefore := false
	for _, id := range before {
		c := s.claims[id]
		switch {
		case c == nil: // given up, or granted and gone again by Break
		case !c.held:
			waitingBefore = true
		case waitingBefore:
			w.fatalf("%q was granted before one that stood before it", id)
		}
	}
	if c := s.claims[own]; c != nil && c.held && !heldBefore[own] {
		if waitingBefore && !contains(before, own) {
			w.fatalf("newcomer %q overtook the queue", own)
		}
	}
	// Tokens rise with every grant, and never change.
	for c := range s.holders.all {
		if old, ok := w.grants[c.ID]; ok && heldBefore[c.ID] {
			if c.token != old.Token {
				w.fatalf("token of %q changed from %d to %d", c.ID, old.Token, c.token)
			}
			continue
		}
		if c.token <= highest {
			w.fatalf("%q was granted with token %d, after %d", c.ID, c.token, highest)
		}
		w.drawn = max(w.drawn, c.token)
		w.grants[c.ID] = driver.Grant{Token: c.token}
	}
	for _, e := range s.Events() {
		if e.Held && (e.Grant.Token <= highest || e.Grant.TTL > driver.ClaimTTL || e.Grant.Waiting) {
			w.fatalf("event %+v after token %d", e, highest)
		}
	}
}

func contains(ids []string, id string) bool {
	for _, x := range ids {
		if x == id {
			return true
		}
	}
	return false
}

// ops does what the source of small numbers says: from rapid, or from bytes.
func (w *world) ops(steps int, pick func(n int) int) {
	ids := []string{"a", "b", "c", "d", "e", "f", "g"}
	shapes := [][2]int64{{driver.Whole, driver.Whole}, {1, driver.Whole}, {1, 3}, {2, 3}, {3, 3}, {1, 2}}
	ttls := []time.Duration{time.Millisecond, 300 * time.Millisecond, 2 * time.Second, time.Hour}
	pauses := []time.Duration{0, 0, 0, 0, time.Microsecond, time.Millisecond, 100 * time.Millisecond, time.Second, driver.WaiterTTL, time.Hour}
	for range steps {
		id := ids[pick(len(ids))]
		c := driver.Claim{Key: "k", ID: id, Owner: id}
		ttl := ttls[pick(len(ttls))]
		w.now += pauses[pick(len(pauses))]
		w.step(id, func() {
			switch pick(7) {
			case 0, 1, 2:
				shape := shapes[pick(len(shapes))]
				c.Weight, c.Capacity = shape[0], shape[1]
				w.acquire(driver.Request{Claim: c, TTL: ttl, Queue: pick(3) > 0, MaxWaiting: pick(4)})
			case 3:
				w.renew(c, ttl)
			case 4:
				stood := w.s.claims[id] != nil && w.s.claims[id].end > w.now
				if err := w.s.Release(w.now, c); (err == nil) != stood || err != nil && !errors.Is(err, driver.ErrLost) {
					w.fatalf("release of %q, standing = %v: %v", id, stood, err)
				}
				if w.s.claims[id] != nil {
					w.fatalf("%q was released and is still there", id)
				}
			case 5:
				writer := w.holding(id) && w.s.claims[id].Capacity == driver.Whole
				g, err := w.s.Downgrade(w.now, c, ttl)
				if err == nil && (w.s.claims[id].Weight != 1 || g.Waiting || g.TTL != ttl) || writer && err != nil {
					w.fatalf("downgrade of %q: %+v, %v", id, g, err)
				}
			case 6:
				w.s.Break(w.now)
			}
		})
		w.step("", func() { w.s.Inspect(w.now) })
	}
}

func (w *world) acquire(r driver.Request) {
	stood := w.s.claims[r.ID] != nil && w.s.claims[r.ID].end > w.now
	g, err := w.s.Acquire(w.now, r)
	c := w.s.claims[r.ID]
	switch {
	case err != nil:
		_, held := errors.AsType[*driver.HeldError](err)
		_, other := errors.AsType[*driver.CapacityError](err)
		full, isFull := errors.AsType[*driver.QueueFullError](err)
		if isFull && (!r.Queue || r.MaxWaiting == 0 || full.Waiting < r.MaxWaiting || full.Waiting != w.s.queue.len) {
			w.fatalf("acquire %+v with %d waiting: %v", r, w.s.queue.len, err)
		}
		if !held && !other && !isFull || held && r.Queue || stood || c != nil {
			w.fatalf("acquire %+v, standing = %v: %v", r, stood, err)
		}
	case g.Waiting != !c.held, g.Waiting && !r.Queue && !stood, g.Waiting && g.TTL != driver.WaiterTTL, !g.Waiting && g.TTL != r.TTL:
		w.fatalf("acquire %+v: %+v", r, g)
	case g.Waiting && !stood && r.MaxWaiting > 0 && w.s.queue.len > r.MaxWaiting:
		w.fatalf("acquire %+v: it waits as one of %d", r, w.s.queue.len)
	case g.Waiting && (g.Again <= 0 || g.Again > driver.RefreshEvery):
		w.fatalf("acquire %+v: look again after %v", r, g.Again)
	}
}

func (w *world) renew(c driver.Claim, ttl time.Duration) {
	stood := w.s.claims[c.ID] != nil && w.s.claims[c.ID].end > w.now
	switch a := w.s.Renew(w.now, c, ttl); {
	case stood != (a.State == driver.Held || a.State == driver.Waiting):
		w.fatalf("renew of %q, standing = %v: %v", c.ID, stood, a.State)
	case a.State == driver.Held && (a.Grant.TTL != ttl || a.Grant.Token == 0), a.State == driver.Waiting && a.Grant.TTL != driver.WaiterTTL:
		w.fatalf("renew of %q: %+v", c.ID, a)
	}
}

func TestInvariants(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		w := newWorld(t.Fatalf)
		w.ops(rapid.IntRange(1, 60).Draw(t, "steps"), func(n int) int { return rapid.IntRange(0, n-1).Draw(t, "pick") })
	})
}

func FuzzInvariants(f *testing.F) {
	f.Add([]byte{0, 3, 0, 0, 2, 1, 3, 0, 1, 2, 0, 2, 6, 5, 1, 1, 3})
	f.Fuzz(func(t *testing.T, data []byte) {
		newWorld(t.Fatalf).ops(min(len(data), 500), func(n int) int {
			if len(data) == 0 {
				return 0
			}
			b := data[0]
			data = data[1:]
			return int(b) % n
		})
	})
}

func request(id string, weight, capacity int64) driver.Request {
	return driver.Request{Claim: driver.Claim{Key: "k", ID: id, Weight: weight, Capacity: capacity}, TTL: time.Hour, Queue: true}
}

// The queue as people would read it: strict order, readers together.
func TestOrder(t *testing.T) {
	w := newWorld(t.Fatalf)
	const whole = driver.Whole
	for _, r := range []driver.Request{
		request("w1", whole, whole), request("r1", 1, whole), request("r2", 1, whole), request("w2", whole, whole), request("r3", 1, whole),
		request("p1", 2, 3), request("p2", 2, 3), request("p3", 1, 3),
	} {
		if _, err := w.s.Acquire(w.now, r); err != nil {
			t.Fatal(err)
		}
	}
	for _, want := range []string{"w1", "r1 r2", "w2", "r3", "p1", "p2 p3", ""} {
		got := ""
		var ids []string
		for c := range w.s.holders.all {
			ids = append(ids, c.ID)
		}
		for i, id := range ids {
			if i > 0 {
				got += " "
			}
			got += id
		}
		if got != want {
			t.Fatalf("hold together: %q, want %q", got, want)
		}
		for _, id := range ids {
			if err := w.s.Release(w.now, driver.Claim{ID: id}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// A long queue in which all leave from the middle costs no walks.
func TestLeavingIsCheap(t *testing.T) {
	w := newWorld(t.Fatalf)
	const n = 200_000
	ids := make([]string, n)
	for i := range ids {
		ids[i] = driver.NewID()
		w.s.Acquire(w.now, request(ids[i], driver.Whole, driver.Whole))
	}
	start := time.Now()
	for i := n - 1; i > 0; i-- {
		j := (i*7919 + 13) % (i + 1)
		ids[i], ids[j] = ids[j], ids[i]
		if err := w.s.Release(w.now, driver.Claim{ID: ids[i]}); err != nil {
			t.Fatal(err)
		}
	}
	if d := time.Since(start); d > 20*time.Second { // quadratic would take minutes
		t.Fatalf("%d waiters left in %v", n, d)
	}
	if !w.s.Idle(w.now + 2*time.Hour) {
		t.Fatal("not idle in the end")
	}
}

func TestTokensFollowTheClock(t *testing.T) {
	var c Counter
	if a, b := c.next(time.Second), c.next(time.Second); a != 1_000_000 || b != 1_000_001 {
		t.Fatalf("drew %d and %d", a, b)
	}
	if a := c.next(2 * time.Second); a != 2_000_000 {
		t.Fatalf("drew %d a second later", a)
	}
	if a := c.next(time.Second); a != 2_000_001 {
		t.Fatalf("drew %d after the clock went back", a)
	}
}
