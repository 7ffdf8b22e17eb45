package rate

import (
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/batonhq/baton/driver/limits"
)

func TestText(t *testing.T) {
	t.Parallel()
	for _, s := range []State{nil, {1}, {3, 1763755740000000, 2, 3, 7, 0}, {1, 100, exact - 1, 1}} {
		if got := Parse(s.Text()); !slices.Equal(got, s) {
			t.Errorf("%v became %q and %v", s, s.Text(), got)
		}
	}
	for _, text := range []string{" ", "1 ", "a", "1,2", "1 -2", "9007199254740992", "99999999999999999999"} {
		if got := Parse(text); got != nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// No text in a store makes a decision panic.
func TestGarbageDoesNotPanic(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(3, 3))
	number := func() int64 {
		switch r.IntN(4) {
		case 0:
			return r.Int64N(4)
		case 1:
			return 1e15 + r.Int64N(1e9)
		case 2:
			return exact - 1 - r.Int64N(3)
		}
		return r.Int64N(1 << (1 + r.IntN(53)))
	}
	var all []Algorithm
	for _, l := range []limits.Limit{
		{Algorithm: limits.FixedWindow, N: 5, Period: 1e9},
		{Algorithm: limits.SlidingWindow, N: 5, Period: 1e9, Parts: 10},
		{Algorithm: limits.SlidingLog, N: 5, Period: 1e9},
		{Algorithm: limits.EstimatedWindow, N: 5, Period: 1e9},
		{Algorithm: limits.TokenBucket, N: 7, Period: 1e9, Burst: 5},
		{Algorithm: limits.LeakyBucket, N: 7, Period: 1e9, Burst: 5, Ahead: 2},
	} {
		a, err := Of(l)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, a)
	}
	for range 30_000 {
		s := State{1 + r.Int64N(3)}
		for range []int{5, 5, 1, 3, 7}[r.IntN(5)] {
			s = append(s, number())
		}
		text := s.Text()
		for _, l := range all {
			now := 1e15 + r.Int64N(1e9)
			was, _ := l.Settle(Parse(text), now)
			l.Status(was, now)
			if l.Ask(was, now, 1, 1000).OK {
				was = l.Take(was, now, 1)
			}
			was = l.Charge(was, now, 5)
			l.Status(was, now)
			l.Give(was, now, 3, now, 0)
		}
	}
}

// A bucket whose use does not fit into tokens is full, and is not divided.
func TestWholeAtTheEdge(t *testing.T) {
	t.Parallel()
	const tokens = 3 << 20
	b := Bucket{Tokens: tokens, Period: 1}
	us := int64((1 << 63) / (tokens / 2)) // us*tokens is less than 2^64, and with the fraction more
	if n := b.whole(span{us, tokens - 1}, 10); n != 10 {
		t.Errorf("%d tokens", n)
	}
}

func TestKnown(t *testing.T) {
	t.Parallel()
	var k Known
	takes := []limits.Take{{Key: "k", Limit: limits.Limit{Algorithm: limits.TokenBucket, N: 1, Period: 1e9, Burst: 5}, Cost: 1}}
	a, err1 := k.NewRequest(limits.Request{Takes: takes})
	b, err2 := k.NewRequest(limits.Request{Takes: takes})
	if err1 != nil || err2 != nil || a.Limits[0] != b.Limits[0] {
		t.Errorf("%v, %v: the same limit is made twice", err1, err2)
	}
	takes[0].Key = "other"
	if a.Takes[0].Key != "k" {
		t.Error("the request shares the caller's list")
	}
	takes[0].Limit.N = 0
	if _, err := k.NewRequest(limits.Request{Takes: takes}); err == nil {
		t.Error("a limit of 0 is not refused")
	}
	if _, err := k.NewRequest(limits.Request{}); err == nil {
		t.Error("a request without takes is not refused")
	}
	for n := range int64(mostKnown + 10) {
		takes[0].Limit.N = n + 1
		if _, err := k.NewRequest(limits.Request{Takes: takes}); err != nil {
			t.Fatal(err)
		}
	}
	if len(k.made) > mostKnown {
		t.Errorf("%d limits are remembered", len(k.made))
	}
}
