package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// exact bounds the integers that scripts calculate exactly.
const exact = 1 << 53

// Take implements limits.Store: one script, by the clock of the server. In Cluster the
// limits of one request must share a slot, by a common {tag} in their keys; otherwise it
// returns a *limits.Error.
//
// FLUSHALL resets all limits; a failover resets those that the new primary does not know.
// If the name of a limit has a value that is no string, the error is a *limits.Error,
// too.
func (s *Store) Take(ctx context.Context, r limits.Request) (limits.Taken, error) {
	if err := limits.Check(r); err != nil {
		return limits.Taken{}, err
	}
	if len(r.Takes) == 1 && r.Mode == limits.TakeIfAllowed && r.MaxWait == 0 && r.TurnWithin == 0 && r.Now == 0 && r.ID == "" {
		return s.takeSimple(ctx, &r)
	}
	c, err := s.limitCall(&r)
	if err != nil {
		return limits.Taken{}, err
	}
	answer, err := s.run(ctx, c.Script, c.Keys, c.Args)
	if err != nil {
		return limits.Taken{}, err
	}
	return s.taken(&r, c.Script, answer)
}

// takeSimple is Take for a request with one limit and no options.
func (s *Store) takeSimple(ctx context.Context, r *limits.Request) (limits.Taken, error) {
	t := &r.Takes[0]
	limit, err := s.limits.of(t.Limit)
	if err != nil {
		return limits.Taken{}, err
	}
	answer, err := s.decisions.decide(ctx, question{limit, t.Key, t.Cost})
	if err != nil {
		return limits.Taken{}, err
	}
	switch answer := answer.(type) {
	case *limits.Taken:
		return *answer, nil
	case string:
		if now, state, ok := stateAt(answer); ok {
			q := rate.Request{Request: *r, Limits: limit.alone[:]}
			d, _ := q.Decide([]rate.State{state}, now)
			return d, nil
		}
	}
	return s.taken(r, simpleScript, answer)
}

// told is q as the argument of simple.lua, which decides it as often as times says.
func (q *question) told(times int) string {
	var b [256]byte
	return string(append(appendInt(strconv.AppendInt(b[:0], int64(times), 10), q.cost), q.limit.numbers...))
}

func (s *Store) decideOne(ctx context.Context, o *operation) (any, error) {
	o.keys[0], o.args[0] = s.names.beside(o.ask.key).limit(), o.ask.told(1)
	return s.runSimple(ctx, o.keys[:1], o.args[:1])
}

// runSimple may overtake an abandoned call: its decisions have no ID by which they could
// be repeated or cancelled.
func (s *Store) runSimple(ctx context.Context, keys, args []string) (any, error) {
	return s.runCall(ctx, wire.Call{Script: simpleScript, Keys: keys, Args: args, Loose: true})
}

// decideSeveral makes decisions in one call.
func (s *Store) decideSeveral(ctx context.Context, batch []*operation) {
	keys, args := make([]string, len(batch)), make([]string, len(batch))
	for i, o := range batch {
		keys[i], args[i] = s.names.beside(o.ask.key).limit(), o.ask.told(o.times)
	}
	answer, err := s.runSimple(ctx, keys, args)
	answers := list(answer)
	if len(keys) == 1 {
		answers = []any{answer}
	} else if err == nil && len(answers) != len(keys) {
		err = strange(simpleScript, answer)
	}
	for i, o := range batch {
		if err != nil {
			o.err = notTheirs(err)
		} else {
			o.share(answers[i])
		}
	}
}

// share divides the answer among the callers of the decision.
func (o *operation) share(answer any) {
	a := list(answer)
	now, state, ok := stateAt(text(answer))
	switch {
	case ok:
		q := rate.Request{Request: limits.Request{Takes: []limits.Take{{Cost: o.ask.cost}}}, Limits: o.ask.limit.alone[:]}
		states := []rate.State{state}
		o.each = make([]limits.Taken, o.times)
		for i := range o.each { // what the first refusal drops from states, the next would drop, too
			o.each[i], _ = q.Decide(states, now)
		}
	case o.times == 1 || a != nil && len(a) <= 2: // one answer for all
		o.answer = answer
	case len(a) == 4*o.times+1:
		o.each = make([]limits.Taken, o.times)
		for i := range o.each {
			o.each[i] = decided(append(append(make([]any, 0, 5), a[0]), a[4*i+1:4*i+5]...))
		}
	default:
		o.err = strange(simpleScript, answer)
	}
}

// stateAt parses an answer of simple.lua: the time, and the state.
func stateAt(text string) (now int64, s rate.State, ok bool) {
	s = make(rate.State, 0, 2+8)
	n := int64(0)
	for i := range len(text) {
		if text[i] == ' ' {
			s, n = append(s, n), 0
		} else {
			n = 10*n + int64(text[i]-'0')
		}
	}
	if !strings.HasSuffix(text, " ") {
		s = append(s, n)
	}
	if len(s) < 2 {
		return 0, nil, false
	}
	return s[0]*1_000_000 + s[1], s[2:], true
}

// limitCall makes the call of the script limit for a request.
func (s *Store) limitCall(r *limits.Request) (c wire.Call, err error) {
	first := r.Takes[0].Key
	keep := int64(0)
	if r.ID != "" {
		keep = ceilMillis(r.Keep)
	}
	var b [256]byte
	a := b[:0]
	for _, n := range []int64{int64(r.Mode), r.MaxWait.Microseconds(), r.At, r.Wait.Microseconds(), keep, r.Now, (&rate.Request{Request: *r}).Within()} {
		a = appendInt(a, n)
	}
	c.Keys = make([]string, 0, len(r.Takes)+1)
	c.Args = append(make([]string, 0, len(r.Takes)+1), string(a))
	var home lockNames
	for i, t := range r.Takes {
		limit, err := s.limits.of(t.Limit)
		if err != nil {
			return c, err
		}
		if i > 0 && c.Script != limit.script() {
			c.Script = limitScript
		} else {
			c.Script = limit.script()
		}
		n := s.names.beside(t.Key)
		if i == 0 {
			home = n
		} else if s.names.cluster && !s.names.fixed && slot(n.lock) != slot(home.lock) {
			return c, &limits.Error{Key: first, Reason: fmt.Sprintf(
				"in Redis Cluster it lies on another slot than %q, which the same request asks for: give both keys a common tag in braces, as in {user1}.requests and {user1}.bytes", t.Key)}
		}
		c.Keys = append(c.Keys, n.limit())
		c.Args = append(c.Args, string(append(appendInt(b[:0], t.Cost), limit.numbers...)))
	}
	if r.ID != "" {
		c.Keys = append(c.Keys, home.id(r.ID))
	}
	return c, nil
}

// appendInt appends a space and n, which is not negative. It cuts n off at the exact
// integers, which are more than any limit has.
func appendInt(b []byte, n int64) []byte {
	return strconv.AppendInt(append(b, ' '), min(n, exact-1), 10)
}

func ceilMillis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

func (s *Store) taken(r *limits.Request, script *wire.Script, answer any) (limits.Taken, error) {
	a := list(answer)
	switch n := 4 * len(r.Takes); len(a) {
	case n + 1:
		return decided(a), nil
	case n + 2:
		d := decided(a[:n+1])
		d.Repeated, d.Wait = true, micros(a[n+1])
		for i := range d.Limits {
			d.Limits[i].Wait = d.Wait
		}
		return d, nil
	case 1:
		if ahead, outside := (&rate.Request{Request: *r}).Outside(number(a[0])); outside {
			return limits.Taken{}, &limits.ClockError{Store: traits.Store, Ahead: ahead}
		}
	case 2:
		if i := int(number(a[0])); i > 0 && i <= len(r.Takes) {
			return limits.Taken{}, &limits.Error{Key: r.Takes[i-1].Key, Reason: fmt.Sprintf(
				"redis has a %s under the name %q: remove it, or choose another key", text(a[1]), s.names.beside(r.Takes[i-1].Key).limit())}
		} else if i > 0 { // an ID is not shown
			return limits.Taken{}, &limits.Error{Key: r.Takes[0].Key, Reason: fmt.Sprintf(
				"redis has a %s under the name of the request's ID, which begins with %q: remove it", text(a[1]), s.names.own+"d:")}
		}
	}
	return limits.Taken{}, strange(script, answer)
}

// decided parses the decisions of the limits.
func decided(a []any) limits.Taken {
	d := limits.Taken{OK: true, At: number(a[0]), Limits: make([]limits.Decision, len(a)/4)}
	for i := range d.Limits {
		x, b := &d.Limits[i], a[4*i+1:]
		switch us := number(b[0]); {
		case us >= 0:
			x.OK, x.Wait = true, time.Duration(us)*time.Microsecond
		case us == -exact:
			x.Retry = limits.Never
		default:
			x.Retry = time.Duration(-1-us) * time.Microsecond
		}
		x.Remaining, x.Next, x.Reset = number(b[1]), micros(b[2]), micros(b[3])
		d.OK = d.OK && x.OK
		d.Wait, d.Retry = max(d.Wait, x.Wait), max(d.Retry, x.Retry)
	}
	if !d.OK {
		d.Wait = 0
	}
	return d
}

func micros(v any) time.Duration { return time.Duration(number(v)) * time.Microsecond }

// knownLimits caches the arguments of scripts for limits, so that a limit in frequent use
// is checked once. Limits with the same hash replace each other.
type knownLimits struct {
	slots [1024]atomic.Pointer[knownLimit]
}

type knownLimit struct {
	limit   limits.Limit
	alone   [1]rate.Algorithm // in the form of a rate.Request
	numbers string            // each after a space
}

var limitSeed = maphash.MakeSeed()

// script is the variant of the script limit for this limit.
func (k *knownLimit) script() *wire.Script {
	switch k.limit.Algorithm {
	case limits.EstimatedWindow:
		return approxScript
	case limits.TokenBucket, limits.LeakyBucket:
		return bucketScript
	}
	return windowScript
}

func (k *knownLimits) of(l limits.Limit) (*knownLimit, error) {
	slot := &k.slots[maphash.Comparable(limitSeed, l)%uint64(len(k.slots))]
	if known := slot.Load(); known != nil && known.limit == l {
		return known, nil
	}
	a, err := rate.Of(l)
	if err != nil {
		return nil, err
	}
	var b []byte
	for _, n := range a.Numbers() {
		b = appendInt(b, n)
	}
	known := &knownLimit{l, [1]rate.Algorithm{a}, string(b)}
	slot.Store(known)
	return known, nil
}
