package redisstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
	"github.com/batonhq/baton/internal/testserver"
)

// A script's numbers are floating point. Whatever Go counts exactly, it must,
// too.
func TestLimitsWithLargeNumbers(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	r := rand.New(rand.NewPCG(7, 7))
	large := func(most int64) int64 { // of any magnitude
		return 1 + r.Int64N(max(most>>r.IntN(50), 1))
	}
	draw := func() (limits.Limit, rate.Algorithm) {
		for {
			limit := limits.Limit{Algorithm: limits.Algorithm(1 + r.IntN(int(limits.LeakyBucket))), N: large(1 << 51), Period: time.Duration(large(4e15)) * time.Microsecond}
			switch limit.Algorithm {
			case limits.FixedWindow:
				limit.Offset = time.Duration(r.Int64N(8e15)-4e15) * time.Microsecond
			case limits.SlidingWindow:
				limit.Parts = large(1000)
				limit.Period -= limit.Period % time.Duration(limit.Parts*1000)
			case limits.SlidingLog:
				limit.N = large(200)
			case limits.EstimatedWindow:
				limit.Period -= limit.Period % time.Duration(1000*large(1_000_000))
			case limits.LeakyBucket:
				limit.Burst = large(1 << 51)
				limit.Ahead = large(limit.Burst) - 1
			case limits.TokenBucket:
				limit.Burst = large(1 << 51)
			}
			if a, err := rate.Of(limit); err == nil {
				return limit, a
			}
		}
	}
	for n := range testserver.Rounds(150) {
		key := fmt.Sprint("k", n)
		var state rate.State
		now := 1_500_000_000_000_000 + r.Int64N(2e15)
		limit, a := draw()
		var last limits.Taken
		for step := range 20 {
			if step == 12 { // what another limit left
				limit, a = draw()
			}
			q := asking(key, limit, min(large(2*a.Capacity()), a.Capacity()+1))
			q.Now = now
			switch r.IntN(5) {
			case 0:
				q.Mode = limits.TakeAnyway
			case 1:
				if q.Mode = limits.GiveBack; r.IntN(3) > 0 {
					q.At, q.Wait = last.At, last.Wait
				}
			case 2:
				q.MaxWait = time.Duration(large(4e15)) * time.Microsecond
			}
			before := slices.Clone(state)
			request, err := rate.NewRequest(q)
			if err != nil {
				t.Fatal(err)
			}
			mine := []rate.State{slices.Clone(state)}
			want, changed := request.Decide(mine, now)
			if changed {
				state = mine[0]
			}
			if got := l.taken(s, q); !reflect.DeepEqual(got, want) {
				t.Fatalf("limit %d, step %d: %+v\nof %v is answered with\n%+v, which should be\n%+v", n, step, q, before, got, want)
			}
			if last = want; want.Limits[0].Next > 0 && r.IntN(2) == 0 {
				now += want.Limits[0].Next.Microseconds() - r.Int64N(2)
			} else {
				now += large(1e12)
			}
			if now > 4e15 {
				break
			}
		}
	}
}

// Requests that ask one limit have a script that takes short cuts, several times
// over for several keys at once. Each says and leaves behind what package rate
// does, whatever it finds.
func TestShortCuts(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	r := rand.New(rand.NewPCG(5, 5))
	server := strings.Fields(l.do("TIME"))
	now := number(server[0])*1_000_000 + number(server[1])
	wide := func(most int64) int64 { return 1 + r.Int64N(max(most>>r.IntN(40), 1)) }
	draw := func() (limits.Limit, rate.Algorithm) {
		for {
			limit := limits.Limit{Algorithm: limits.Algorithm(1 + r.IntN(int(limits.LeakyBucket))), N: 1 + r.Int64N(20), Period: time.Duration(wide(1e13)) * time.Microsecond}
			switch r.IntN(4) {
			case 0:
				limit.N = wide(1e9)
			case 1:
				limit.N = 1 + r.Int64N(200) // and a long state
			}
			switch limit.Algorithm {
			case limits.FixedWindow:
				limit.Offset = time.Duration(r.Int64N(2e9)-1e9) * time.Microsecond
				if r.IntN(4) == 0 {
					limit.Offset, limit.Period, limit.Windows = 0, 0, [4]int64{now - 2e9, now - 1e9, now + 1e9, now + 2e9}
				}
			case limits.SlidingWindow:
				limit.Parts, limit.Classic = wide(60), r.IntN(2) == 0
				limit.Period -= limit.Period % time.Duration(limit.Parts*1000)
			case limits.TokenBucket, limits.LeakyBucket:
				limit.Burst = 1 + r.Int64N(20)
				if r.IntN(4) == 0 {
					limit.Burst = wide(1e9)
				}
				if limit.Algorithm == limits.LeakyBucket {
					limit.Ahead = r.Int64N(limit.Burst + 1)
				}
			}
			if a, err := rate.Of(limit); err == nil {
				return limit, a
			}
		}
	}
	const many = 20
	long := 0
	answered := make(chan struct{})
	close(answered)
	for round := range testserver.Rounds(60) {
		var names []string
		var states []rate.State
		var requests []limits.Request
		var times []int
		var batch []*operation
		for i := range many {
			limit, a := draw()
			key := fmt.Sprint(round, "-", i)
			writes := a
			if r.IntN(5) == 0 {
				_, writes = draw()
			}
			// What was taken lately, up to a moment that may be ahead.
			var state rate.State
			at := now + wide(1e9) - wide(1e9)
			for range r.IntN([]int{8, 8, 150}[r.IntN(3)]) {
				at += wide(1e6) - wide(1e6)/8
				state, _ = writes.Settle(state, at)
				cost := 1 + r.Int64N(min(writes.Capacity(), 5))
				if r.IntN(8) == 0 {
					state = writes.Charge(state, at, cost)
				} else if writes.Ask(state, at, cost, rate.AnyTurn).OK {
					state = writes.Take(state, at, cost)
				}
			}
			name := l.limit(key)
			if len(state) > 0 {
				text := strings.Trim(fmt.Sprint(state), "[]")
				if state[0] == 1 && len(state) > 40 && r.IntN(2) == 0 {
					sum := int64(0)
					for j := 3; j < len(state); j += 2 {
						sum += state[j]
					}
					text = strings.Trim(fmt.Sprint(append(rate.State{1, state[1], 0, sum}, state[2:]...)), "[]")
				}
				l.do("SET", name, text)
			}
			known, err := s.limits.of(limit)
			if err != nil {
				t.Fatal(err)
			}
			q := asking(key, limit, r.Int64N(min(a.Capacity(), 5)+2))
			names, states, requests, times = append(names, name), append(states, state), append(requests, q), append(times, 1+r.IntN(3)*r.IntN(5))
			batch = append(batch, &operation{ask: question{known, key, q.Takes[0].Cost}, times: times[i], done: answered})
		}
		s.decideSeveral(t.Context(), batch)
		for i := range many {
			request, err := rate.NewRequest(requests[i])
			if err != nil {
				t.Fatal(err)
			}
			before := fmt.Sprint(states[i])
			kept := []rate.State{slices.Clone(states[i])}
			reset, written := time.Duration(0), false
			for n := range times[i] {
				answer, err := s.decisions.answer(t.Context(), batch[i])
				if err != nil {
					t.Fatal(err)
				}
				var got limits.Taken
				if d, ok := answer.(*limits.Taken); ok {
					got = *d
				} else if got, err = s.taken(&requests[i], simpleScript, answer); err != nil {
					t.Fatal(err)
				}
				mine := []rate.State{slices.Clone(kept[0])}
				want, changed := request.Decide(mine, got.At)
				if changed {
					kept, written, reset = mine, true, want.Limits[0].Reset
				}
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("round %d, %+v, number %d of %s\nis answered with %+v\nwhich should be %+v", round, requests[i].Takes[0], n, before, got, want)
				}
			}
			left, want := l.do("GET", names[i]), strings.Trim(fmt.Sprint(kept[0]), "[]")
			if head := strings.SplitN(left, " ", 5); len(head) == 5 && head[0] == "1" && head[2] == "0" { // the sum of a long one
				sum, numbers := int64(0), strings.Fields(head[4])
				for j := 1; j < len(numbers); j += 2 {
					sum += number(numbers[j])
				}
				if left = strings.Join([]string{head[0], head[1], head[4]}, " "); number(head[3]) != sum {
					t.Errorf("round %d: %s says that its sum is %s", round, left, head[3])
				}
				long++
			}
			if left != want && (!written || reset > 10*time.Second) {
				t.Fatalf("round %d, %+v, %d times: of %s was left\n%q\nwhich should be\n%q", round, requests[i].Takes[0], times[i], before, left, want)
			}
			if ms := number(l.do("PTTL", names[i])); written && ms > (reset+time.Millisecond-1).Milliseconds() || written && ms == -1 {
				t.Fatalf("round %d, %+v: kept for another %d ms, and fresh in %v", round, requests[i].Takes[0], ms, reset)
			}
		}
	}
	if long == 0 {
		t.Error("no state was long")
	}
}
