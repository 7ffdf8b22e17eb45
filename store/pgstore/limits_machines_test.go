package pgstore

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// A question to a machine, and what package rate says.
type question struct {
	request limits.Request
	state   rate.State
	want    []int64 // as the functions answer
}

// ask asks the machines all questions at once.
func ask(t *testing.T, s *Store, all []question) (answers [][]int64) {
	t.Helper()
	var numbers, states []string
	var nows, costs, aheads, ats, waits []int64
	var modes []int32
	for _, q := range all {
		r := q.request
		l, err := rate.Of(r.Takes[0].Limit)
		if err != nil {
			t.Fatal(err)
		}
		numbers, states = append(numbers, array(appendNumbers(nil, &rate.Request{Request: r}, l))), append(states, array(q.state))
		nows, costs, modes = append(nows, r.Now), append(costs, r.Takes[0].Cost), append(modes, int32(r.Mode))
		aheads, ats, waits = append(aheads, r.MaxWait.Microseconds()), append(ats, r.At), append(waits, r.Wait.Microseconds())
	}
	rows, err := s.pool.Query(t.Context(), `SELECT CASE
			WHEN s[1] <> n[1] OR s[1] = 2 AND s[2] <> n[3] THEN baton_mixed_1(n, s, now_, cost, mode, ahead, at, wait, true)
			WHEN n[1] = 1 THEN baton_window_1(n, s, now_, cost, mode, ahead, at, wait, true)
			WHEN n[1] = 2 THEN baton_estimate_1(n, s, now_, cost, mode, ahead, at, wait, true)
			ELSE baton_bucket_1(n, s, now_, cost, mode, ahead, at, wait, true) END
		FROM (SELECT n::bigint[] AS n, CASE WHEN baton_sane_1(s::bigint[]) THEN s::bigint[] ELSE '{}' END AS s, now_, cost, mode, ahead, at, wait, i
			FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[], $5::int[], $6::bigint[], $7::bigint[], $8::bigint[])
			WITH ORDINALITY AS u (n, s, now_, cost, mode, ahead, at, wait, i)) AS q ORDER BY i`,
		numbers, states, nows, costs, modes, aheads, ats, waits)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var a []int64
		if err := rows.Scan(&a); err != nil {
			t.Fatal(err)
		}
		answers = append(answers, a)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return answers
}

func array(s []int64) string {
	return strings.ReplaceAll("{"+strings.Trim(fmt.Sprint(s), "[]")+"}", " ", ",")
}

// right is what package rate says of a request to one limit.
func right(t *testing.T, r limits.Request, s rate.State) (answer []int64, next rate.State) {
	t.Helper()
	q, err := rate.NewRequest(r)
	if err != nil {
		t.Fatal(err)
	}
	states := []rate.State{slices.Clone(s)}
	d, changed := q.Decide(states, r.Now)
	x := d.Limits[0]
	answer = []int64{0, 0, x.Reset.Microseconds(), x.Wait.Microseconds()}
	if x.OK {
		answer[0] = 1
	}
	if next = s; changed {
		next, answer[1] = states[0], 1
	}
	return append(answer, states[0]...), next
}

// Random requests about random limits, small ones whose edges are met and those
// with numbers as large as there can be, by clocks that jump: the machines on
// the server say what package rate says, and leave the same state.
func TestMachines(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	for seed := range uint64(4) {
		r := rand.New(rand.NewPCG(seed, 4))
		var all []question
		for range 50 {
			all = append(all, walk(t, r, 100, seed%2 == 1)...)
		}
		for i, got := range ask(t, s, all) {
			if q := all[i]; !slices.Equal(got, q.want) {
				t.Fatalf("seed %d, question %d: %+v\nof %v is answered with\n%v, which should be\n%v", seed, i, q.request, q.state, got, q.want)
			}
		}
	}
}

// walk asks one key for that many things, and for another limit now and then.
func walk(t *testing.T, r *rand.Rand, steps int, large bool) (all []question) {
	var state rate.State
	now := int64(1_800_000_000_000_000) + r.Int64N(1_000_000_000)
	l := someLimit(r, large)
	var at, wait int64
	for range steps {
		if r.IntN(20) == 0 {
			l = someLimit(r, large)
		}
		scale := l.Period.Microseconds()
		if scale == 0 {
			scale = l.Windows[1] - l.Windows[0]
		}
		switch r.IntN(40) {
		case 0:
			now -= r.Int64N(2*scale) % 1e15
		case 1:
			now += r.Int64N(3*scale) % 1e15
		default:
			now += []int64{0, r.Int64N(3), r.Int64N(scale/50 + 1), r.Int64N(scale/3 + 1)}[r.IntN(4)]
		}
		if now = max(now, 1); now > 3.5e15 {
			return all
		}
		if l.Windows != [4]int64{} {
			now = min(max(now, l.Windows[0]), l.Windows[3]-1)
		}
		most := l.Capacity() + 1
		if r.IntN(2) == 0 {
			most = most/8 + 1
		}
		q := limits.Request{Now: now, Takes: []limits.Take{{Key: "k", Limit: l, Cost: r.Int64N(most + 1)}}}
		switch n := r.IntN(20); {
		case n == 0 && at > 0:
			q.Mode, q.At, q.Wait = limits.GiveBack, at, time.Duration(wait)*time.Microsecond
		case n < 3:
			q.Mode = limits.TakeAnyway
			if r.IntN(10) == 0 {
				q.Takes[0].Cost = 1<<63 - 1
			}
		case n == 3 && r.IntN(4) == 0:
			q.Mode = limits.Forget
		case n < 10:
			q.MaxWait = time.Duration(r.Int64N(2*scale)) * time.Microsecond % (1 << 62)
			q.TurnWithin = time.Duration(r.Int64N(2*scale)) * time.Microsecond % (1 << 62)
		}
		want, next := right(t, q, state)
		all = append(all, question{q, state, want})
		if want[0] == 1 && q.Mode <= limits.TakeAnyway && r.IntN(3) > 0 {
			at, wait = now, want[3]
		}
		state = next
	}
	return all
}

// someLimit is a limit that is legal.
func someLimit(r *rand.Rand, large bool) limits.Limit {
	for {
		n, period := 1+r.Int64N(20), 1+r.Int64N(2_000_000)
		if large {
			n, period = 1+r.Int64N(int64(1)<<(1+r.IntN(51))), (1+r.Int64N(1000))*[]int64{1, 1000, 1_000_000, 3_600_000_000, 86_400_000_000}[r.IntN(5)]
		}
		l := limits.Limit{Algorithm: limits.Algorithm(1 + r.IntN(int(limits.LeakyBucket))), N: n, Period: time.Duration(period) * time.Microsecond}
		switch l.Algorithm {
		case limits.FixedWindow:
			if l.Offset = time.Duration(r.Int64N(2*period)-period) * time.Microsecond; r.IntN(3) == 0 {
				l.Offset, l.Period = 0, 0
				for i := range l.Windows {
					l.Windows[i] = 1_800_000_000_000_000 + period*int64(i*i+2*i)
				}
			}
		case limits.SlidingWindow:
			l.Parts, l.Classic = 1+r.Int64N(12), r.IntN(2) == 0
			l.Period *= time.Duration(l.Parts)
		case limits.TokenBucket, limits.LeakyBucket:
			if l.Burst = 1 + r.Int64N(2*n); l.Algorithm == limits.LeakyBucket {
				l.Ahead = r.Int64N(l.Burst + 1)
			}
		}
		if _, err := rate.Of(l); err == nil {
			return l
		}
	}
}

// What a person wrote into a state by hand is taken for what it says if a machine could
// have written it, else for nothing. It never makes a request fail.
func TestMachinesMeetGarbage(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	s := openAt(t, url)
	r := rand.New(rand.NewPCG(5, 5))
	var all []question
	for range 10_000 {
		l := someLimit(r, false)
		now := int64(1_800_000_000_000_000)
		state := make(rate.State, []int{0, 1, 2, 4, 5, 6, 6, 6, 7, 8}[r.IntN(10)])
		for i := range state {
			state[i] = []int64{0, 1, 2, 3, -1, r.Int64N(100), now + r.Int64N(10_000_000), now - r.Int64N(1_000_000), l.N, l.Period.Microseconds()}[r.IntN(10)]
		}
		q := limits.Request{Now: now, Takes: []limits.Take{{Key: "k", Limit: l, Cost: r.Int64N(l.Capacity() + 1)}}, Mode: limits.Mode(r.IntN(2))}
		if l.Windows != [4]int64{} {
			continue
		}
		want, _ := right(t, q, rate.Parse(state.Text()))
		all = append(all, question{q, state, want})
	}
	for i, got := range ask(t, s, all) {
		q := all[i]
		if s := q.state; len(s) == 6 && s[0] == 2 && max(s[4], s[5])/100 >= s[3] {
			continue // package rate overflows
		}
		if !slices.Equal(got, q.want) {
			t.Fatalf("question %d: %+v\nof %v is answered with\n%v, which should be\n%v", i, q.request, q.state, got, q.want)
		}
	}
}
