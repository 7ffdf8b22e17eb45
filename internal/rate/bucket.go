package rate

import "math/bits"

// Bucket is the token bucket, and the leaky bucket: the generic cell rate
// algorithm of ITU-T I.371, with an emission interval that is a fraction, so
// that 3 per second are 3 per second. Its state is the moment at which the
// bucket is full, or the queue empty:
//
//	kind, microsecond, fraction of it, tokens, period, debt
//
// As a token bucket it allows Burst at once and then tokens at the rate. As a
// leaky bucket (Queue) it is a queue that is served at the rate and holds Burst:
// each request that is allowed is told when its turn comes.
type Bucket struct {
	Tokens, Period int64 // the rate: so many in so many µs, in lowest terms
	Burst          int64
	Queue          bool
	Ahead          int64 // Queue: so many need not wait
}

// NewBucket returns a token bucket that is refilled with tokens every period,
// evenly, up to burst.
func NewBucket(tokens, period, burst int64) (*Bucket, error) {
	if err := checkWindow(tokens, period); err != nil {
		return nil, err
	}
	if burst < 1 {
		return nil, refuse("the burst is %d: it must be at least 1", burst)
	}
	d := gcd(tokens, period)
	b := &Bucket{Tokens: tokens / d, Period: period / d, Burst: burst}
	// Twice the burst is what a full debt comes to.
	hi, lo := bits.Mul64(uint64(2*burst), uint64(b.Tokens))
	if burst >= exact/4 || hi != 0 || lo >= exact {
		return nil, refuse("a burst of %d at %d per %d µs cannot be counted exactly: choose a rounder rate or a smaller burst", burst, tokens, period)
	}
	if hi, lo = bits.Mul64(uint64(2*burst), uint64(b.Period/b.Tokens+1)); hi != 0 || lo >= exact-latest {
		return nil, refuse("a burst of %d at %d per %d µs takes too long to refill to be counted", burst, tokens, period)
	}
	return b, nil
}

// NewQueue returns a leaky bucket that lets tokens out every period, evenly,
// and holds size. The first ahead of those that wait do not.
func NewQueue(tokens, period, size, ahead int64) (*Bucket, error) {
	b, err := NewBucket(tokens, period, size)
	if err != nil {
		return nil, err
	}
	if ahead < 0 || ahead > size {
		return nil, refuse("%d are let out without waiting: that must be from 0 to the size, %d", ahead, size)
	}
	b.Queue, b.Ahead = true, ahead
	return b, nil
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// span is a length of time: µs, and a fraction with the denominator Tokens.
type span struct{ us, frac int64 }

// of is how long n tokens take.
func (b *Bucket) of(n int64) span {
	q, r := b.Period/b.Tokens, b.Period%b.Tokens
	return span{n*q + n*r/b.Tokens, n * r % b.Tokens}
}

func (b *Bucket) plus(x, y span) span {
	x.us, x.frac = x.us+y.us, x.frac+y.frac
	if x.frac >= b.Tokens {
		x.us, x.frac = x.us+1, x.frac-b.Tokens
	}
	return x
}

func (b *Bucket) minus(x, y span) span {
	x.us, x.frac = x.us-y.us, x.frac-y.frac
	if x.frac < 0 {
		x.us, x.frac = x.us-1, x.frac+b.Tokens
	}
	return x
}

func (x span) more(y span) bool { return x.us > y.us || x.us == y.us && x.frac > y.frac }

func (x span) ceil() int64 {
	if x.frac > 0 {
		return x.us + 1
	}
	return x.us
}

// tokens is how many whole tokens a span that is not negative is long.
func (b *Bucket) tokens(x span) int64 {
	hi, lo := bits.Mul64(uint64(x.us), uint64(b.Tokens))
	lo, carry := bits.Add64(lo, uint64(x.frac), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(b.Period)) // at most twice the burst, so it fits
	return int64(n)
}

// used is how far the state is ahead of now: what was taken and has not come
// back, as a time.
func (b *Bucket) used(s State, now int64) span {
	if len(s) == 0 {
		return span{}
	}
	return span{s[1] - now, s[2]}
}

// Capacity is the burst.
func (b *Bucket) Capacity() int64 { return b.Burst }

// Settle is as Algorithm says.
func (b *Bucket) Settle(s State, now int64) State {
	if len(s) != 6 || s[0] != kindBucket || s[3] < 1 || s[4] < 1 || s[2] < 0 || s[2] >= s[3] || s[5] < 0 {
		return s[:0]
	}
	u := b.used(s, now)
	if u.us < 0 || u == (span{}) {
		return s[:0]
	}
	if s[3] != b.Tokens || s[4] != b.Period {
		old := Bucket{Tokens: s[3], Period: s[4]}
		u = b.of(old.whole(u, b.Burst))
		s[5] = 0
	}
	if most := b.of(b.Burst + min(s[5], b.Burst)); u.more(most) {
		u = most
	}
	if !u.more(b.of(b.Burst)) {
		s[5] = 0
	}
	s[1], s[2], s[3], s[4] = now+u.us, u.frac, b.Tokens, b.Period
	return s
}

// whole is how many tokens it takes to be as long as x, at most most.
func (b *Bucket) whole(x span, most int64) int64 {
	n := most
	if hi, _ := bits.Mul64(uint64(x.us), uint64(b.Tokens)); hi < uint64(b.Period) {
		n = min(n, b.tokens(x))
	}
	if n < most && x.more(b.of(n)) {
		n++
	}
	return n
}

// Status is as Algorithm says.
func (b *Bucket) Status(s State, now int64) Status {
	u, full := b.used(s, now), b.of(b.Burst)
	st := Status{Reset: u.ceil()}
	if !u.more(full) {
		st.Remaining = b.tokens(b.minus(full, u))
	}
	if st.Remaining < b.Burst {
		st.Next = b.minus(b.plus(u, b.of(st.Remaining+1)), full).ceil()
	}
	return st
}

// Ask is as Algorithm says.
func (b *Bucket) Ask(s State, now, cost int64) Answer {
	u, full := b.used(s, now), b.of(b.Burst)
	if then := b.plus(u, b.of(cost)); then.more(full) {
		return Answer{Retry: b.minus(then, full).ceil()}
	}
	a := Answer{OK: true}
	if ahead := b.of(b.Ahead); b.Queue && u.more(ahead) {
		a.Wait = b.minus(u, ahead).ceil()
	}
	return a
}

// Take is as Algorithm says.
func (b *Bucket) Take(s State, now, cost int64) State {
	u := b.used(s, now)
	if len(s) == 0 {
		s = append(s, kindBucket, now, 0, b.Tokens, b.Period, 0)
	}
	u = b.plus(u, b.of(min(cost, 2*b.Burst)))
	if full := b.of(b.Burst); u.more(full) {
		if most := b.of(2 * b.Burst); u.more(most) {
			u = most
		}
		s[5] = b.whole(b.minus(u, full), b.Burst)
	}
	s[1], s[2] = now+u.us, u.frac
	return s
}

// Give is as Algorithm says. When it was taken does not matter: a bucket does
// not know.
func (b *Bucket) Give(s State, now, cost, _ int64) State {
	u := b.used(s, now)
	back := b.of(min(cost, 2*b.Burst))
	if !u.more(back) {
		return s[:0]
	}
	u = b.minus(u, back)
	s[1], s[2] = now+u.us, u.frac
	if !u.more(b.of(b.Burst)) {
		s[5] = 0
	}
	return s
}
