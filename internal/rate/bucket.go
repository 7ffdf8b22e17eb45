package rate

import "math/bits"

// Bucket is the token bucket and the leaky bucket: the generic cell rate algorithm of
// ITU-T I.371 (https://en.wikipedia.org/wiki/Generic_cell_rate_algorithm), with a
// fraction as the emission interval, so that 3 per second are exact. Its state is the
// moment at which the bucket is full, or the queue empty:
//
//	kind, microsecond, fraction of it, tokens, period, the most tokens
//
// The last number is how many can be out: the burst, or the greater number that was out
// after the last take. Tokens out beyond the burst are debt, or are promised to requests
// that wait for their turn. Programs of older versions write only the part beyond.
//
// As a token bucket it allows Burst at once and then tokens at the rate. As a leaky
// bucket (Queue) it is a queue of at most Burst that is served at the rate: an allowed
// request gets the time of its turn.
type Bucket struct {
	Tokens, Period int64 // the rate: Tokens per Period µs, in lowest terms
	Burst          int64
	Queue          bool
	Ahead          int64 // Queue: the number that need not wait
	Most           int64 // the most tokens out that can be counted exactly
}

// NewBucket returns a token bucket that is refilled with tokens every period, evenly, up
// to burst.
func NewBucket(tokens, period, burst int64) (*Bucket, error) {
	if err := checkWindow(tokens, period); err != nil {
		return nil, err
	}
	if burst < 1 {
		return nil, refuse("the burst is %d: it must be at least 1", burst)
	}
	d := gcd(tokens, period)
	b := &Bucket{Tokens: tokens / d, Period: period / d, Burst: burst}
	b.Most = mostTokens(b.Tokens, b.Period)
	if burst > b.Most/2 { // a full debt is twice the burst
		return nil, refuse("a burst of %d at %d per %d µs cannot be counted exactly: choose a rounder rate or a smaller burst", burst, tokens, period)
	}
	return b, nil
}

// mostTokens is the most tokens of a rate whose time is exact.
func mostTokens(tokens, period int64) int64 {
	return min((exact-1)/tokens, (exact-latest-1)/(period/tokens+1))
}

// NewQueue returns a leaky bucket of the given size that lets tokens out every period,
// evenly. The first ahead of the queue need not wait.
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

// span is a time: µs, and a fraction with the denominator Tokens.
type span struct{ us, frac int64 }

// of is the time of n tokens.
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

// tokens is the number of whole tokens in a span, which is not negative.
func (b *Bucket) tokens(x span) int64 {
	hi, lo := bits.Mul64(uint64(x.us), uint64(b.Tokens))
	lo, carry := bits.Add64(lo, uint64(x.frac), 0)
	n, _ := bits.Div64(hi+carry, lo, uint64(b.Period)) // at most twice the burst, so it fits
	return int64(n)
}

// used is the time by which the state is ahead of now: that of the tokens that were taken
// and have not come back.
func (b *Bucket) used(s State, now int64) span {
	if len(s) == 0 {
		return span{}
	}
	return span{s[1] - now, s[2]}
}

func (b *Bucket) Capacity() int64 { return b.Burst }

func (b *Bucket) Owns(s State) bool { return s[0] == kindBucket }

func (b *Bucket) Settle(s State, now int64) (_ State, converted bool) {
	if len(s) != 6 || s[0] != kindBucket || s[3] < 1 || s[4] < 1 || s[2] < 0 || s[2] >= s[3] || s[5] < 0 {
		return s[:0], false
	}
	u := b.used(s, now)
	if u.us < 0 || u == (span{}) {
		return s[:0], false
	}
	// A number below the burst is from a smaller burst, or from a version that kept only
	// the part beyond the burst.
	old, most := b, s[5]
	if most < b.Burst {
		most += b.Burst
	}
	if s[3] != b.Tokens || s[4] != b.Period {
		old = &Bucket{Tokens: s[3], Period: s[4]}
		most = min(most, mostTokens(s[3], s[4]))
	} else {
		most = min(most, b.Most)
	}
	if longest := old.of(most); u.more(longest) { // a clock was ahead
		u, converted = longest, true
	}
	if old != b {
		u = b.of(min(old.whole(u, most), b.Most))
	}
	return b.set(s, now, u), converted
}

// set makes a state of a use u, which is not zero.
func (b *Bucket) set(s State, now int64, u span) State {
	most := b.Burst
	if full := b.of(b.Burst); u.more(full) {
		most += b.whole(b.minus(u, full), b.Most-b.Burst)
	}
	return append(s[:0], kindBucket, now+u.us, u.frac, b.Tokens, b.Period, most)
}

// whole is the number of tokens, at most most, that take at least as long as x.
func (b *Bucket) whole(x span, most int64) int64 {
	n := most
	hi, lo := bits.Mul64(uint64(x.us), uint64(b.Tokens))
	if _, carry := bits.Add64(lo, uint64(x.frac), 0); hi+carry < uint64(b.Period) {
		n = min(n, b.tokens(x))
	}
	if n < most && x.more(b.of(n)) {
		n++
	}
	return n
}

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

func (b *Bucket) Ask(s State, now, cost, ahead int64) Answer {
	u := b.used(s, now)
	then := b.plus(u, b.of(cost))
	over := b.minus(then, b.of(b.Burst)).ceil()
	if b.Queue {
		wait := max(b.minus(u, b.of(b.Ahead)).ceil(), 0)
		if over <= 0 && wait <= ahead {
			return Answer{OK: true, Wait: wait}
		}
		return Answer{Retry: max(over, wait-ahead)}
	}
	switch {
	case over <= 0:
		return Answer{OK: true}
	case over <= ahead && !then.more(b.of(b.Most)):
		return Answer{OK: true, Wait: over}
	}
	return Answer{Retry: over}
}

func (b *Bucket) Debt(s State, now int64) int64 {
	return max(b.minus(b.used(s, now), b.of(b.Burst)).ceil(), 0)
}

func (b *Bucket) Take(s State, now, cost int64) State {
	return b.set(s, now, b.plus(b.used(s, now), b.of(cost)))
}

func (b *Bucket) Charge(s State, now, cost int64) State {
	u := b.used(s, now)
	then := b.plus(u, b.of(min(cost, 2*b.Burst)))
	if most := b.of(2 * b.Burst); then.more(most) {
		if then = u; most.more(u) {
			then = most
		}
	}
	return b.set(s, now, then)
}

func (b *Bucket) Give(s State, now, cost, at, wait int64) State {
	cost = min(cost, b.Most)
	u, back := b.used(s, now), b.of(cost)
	if !u.more(back) {
		back = u
	}
	// The next request gets the turn after the rest. If a later request waits for its
	// turn, both would have the same turn.
	last, own := b.of(b.Burst), max(cost-b.Burst, 0)
	if b.Queue {
		last, own = b.of(b.Ahead), cost
	}
	if u.more(last) && u.more(b.plus(b.plus(last, b.of(own)), span{at + wait - now, 0})) {
		return s
	}
	if u = b.minus(u, back); u == (span{}) {
		return s[:0]
	}
	return b.set(s, now, u)
}

// Numbers are the kind, Tokens, Period, Burst, Queue as 0 or 1, Ahead and Most.
func (b *Bucket) Numbers() []int64 {
	queue := int64(0)
	if b.Queue {
		queue = 1
	}
	return []int64{kindBucket, b.Tokens, b.Period, b.Burst, queue, b.Ahead, b.Most}
}

// Full is when the bucket of a state is full: a microsecond and parts of it, with the
// denominator Tokens. ok is false unless the state has the same rate and, at now, no
// promise and no debt.
func (b *Bucket) Full(s State, now int64) (us, parts int64, ok bool) {
	if len(s) != 6 || s[0] != kindBucket || s[3] != b.Tokens || s[4] != b.Period || s[2] >= s[3] || b.used(s, now).more(b.of(b.Burst)) {
		return 0, 0, false
	}
	return s[1], s[2], true
}

func (b *Bucket) FullAt(us, parts int64) State {
	return State{kindBucket, us, parts, b.Tokens, b.Period, b.Burst}
}

// Time is the time of n tokens: µs, and a fraction of one more with the denominator
// Tokens.
func (b *Bucket) Time(n int64) (us, frac int64) {
	x := b.of(n)
	return x.us, x.frac
}
