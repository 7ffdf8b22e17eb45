package simulate

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

func boundary(t *testing.T) []Event {
	t.Helper()
	var events []Event
	for _, text := range []string{"60@1:10", "60@50s"} {
		more, err := Burst(text)
		if err != nil {
			t.Fatal(err)
		}
		events = append(events, more...)
	}
	Sort(events)
	return events
}

func TestRun(t *testing.T) {
	t.Parallel()
	events := boundary(t)
	for _, c := range []struct {
		limit                  limits.Limit
		allowed, most          int64
		firstRefused           int
		longest, retryOfFourty time.Duration
	}{
		{limits.Limit{Algorithm: limits.FixedWindow, N: 100, Period: time.Minute}, 120, 120, -1, 0, 0},
		{limits.Limit{Algorithm: limits.SlidingLog, N: 100, Period: time.Minute}, 100, 100, 100, 0, 40 * time.Second},
		{limits.Limit{Algorithm: limits.TokenBucket, N: 100, Period: time.Minute, Burst: 20}, 40, 40, 20, 0, 600 * time.Millisecond},
		{limits.Limit{Algorithm: limits.LeakyBucket, N: 1, Period: time.Second, Burst: 10}, 20, 20, 10, 9 * time.Second, time.Second},
	} {
		o, err := Run(c.limit, events, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		if o.Allowed != c.allowed || o.Refused != 120-c.allowed || o.Most != c.most || o.FirstRefused != c.firstRefused ||
			o.LongestWait != c.longest || o.Verdicts[100].Retry != c.retryOfFourty {
			t.Errorf("%v: %+v, the hundredth %+v; want %+v", c.limit.Algorithm, o.Allowed, o.Verdicts[100], c)
		}
	}
	few, err := Run(limits.Limit{Algorithm: limits.FixedWindow, N: 100, Period: time.Minute}, events, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	many, err := Run(limits.Limit{Algorithm: limits.SlidingWindow, N: 100, Period: time.Minute, Parts: 60}, events, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	if few.Kept < 2 || many.Kept <= few.Kept || many.Kept > 2*62 {
		t.Errorf("kept %d numbers for a window, %d for one of 60 parts", few.Kept, many.Kept)
	}
	if _, err := Run(limits.Limit{}, events, time.Minute); err == nil {
		t.Error("a limit that is none")
	}
}

// Costs that add up to more than a number holds are shown as the largest number, and
// draw no bar below the axis; an allowed sum is either counted or refused.
func TestCostsBeyondNumbers(t *testing.T) {
	t.Parallel()
	var events []Event
	for range 3 {
		events = append(events, Event{At: Origin, Cost: 9e18})
	}
	limit := limits.Limit{Algorithm: limits.FixedWindow, N: 1 << 50, Period: time.Second}
	o, err := Run(limit, events, time.Minute)
	if err != nil || o.Refused != math.MaxInt64 || o.Allowed != 0 {
		t.Errorf("%d refused, %d allowed, %v", o.Refused, o.Allowed, err)
	}
	var b bytes.Buffer
	if err := Draw(&b, "", append(events, Event{At: Origin.Add(time.Minute), Cost: 1}), []Line{{"log", Outcome{
		Limit: limit, Verdicts: append(o.Verdicts, Verdict{OK: true}),
	}}}); err != nil || strings.Contains(b.String(), `="-`) || !strings.Contains(b.String(), `height="44"`) {
		t.Errorf("%v\n%s", err, b.String())
	}
	events = nil
	for i := range 1 << 14 {
		events = append(events, Event{At: Origin.Add(time.Duration(i) * time.Second), Cost: 1 << 50})
	}
	if o, err := Run(limit, events, time.Hour); err == nil {
		t.Errorf("%d were allowed in all, at most %d in an hour", o.Allowed, o.Most)
	}
}

func TestKeysApart(t *testing.T) {
	t.Parallel()
	events, err := Read(strings.NewReader("0:01 1 a\n0:01 1 b\n0:02 1 a\n0:02 1 b\n"))
	if err != nil {
		t.Fatal(err)
	}
	o, err := Run(limits.Limit{Algorithm: limits.FixedWindow, N: 1, Period: time.Minute}, events, time.Minute)
	if err != nil || o.Allowed != 2 || o.Most != 1 || o.FirstRefused != 2 {
		t.Errorf("%+v, %v", o, err)
	}
}

func TestRead(t *testing.T) {
	t.Parallel()
	events, err := Read(strings.NewReader(`
# a comment
2026-11-21T10:00:00.5Z
1795255200.25 3 user/42 of a kind
1:10 2
203.0.113.9 - frank [10/Oct/2026:13:55:36 -0700] "GET / HTTP/1.0" 200 2326
`))
	if err != nil {
		t.Fatal(err)
	}
	want := []Event{
		{time.Date(2026, 11, 21, 10, 0, 0, 500_000_000, time.UTC), "", 1},
		{time.Unix(1795255200, 250_000_000), "user/42 of a kind", 3},
		{Origin.Add(70 * time.Second), "", 2},
		{time.Date(2026, 10, 10, 20, 55, 36, 0, time.UTC), "203.0.113.9", 1},
	}
	if len(events) != len(want) {
		t.Fatalf("%v", events)
	}
	for i, e := range events {
		if !e.At.Equal(want[i].At) || e.Key != want[i].Key || e.Cost != want[i].Cost {
			t.Errorf("%d: %+v, want %+v", i, e, want[i])
		}
	}
	for _, bad := range []string{"yesterday", "0:50 none", "0:50 0", "1:60", "-5s", "0:61:00", "1e9", "\xff"} {
		var line *LineError
		if _, err := Read(strings.NewReader("\n" + bad)); !errors.As(err, &line) || line.Line != 2 {
			t.Errorf("%q: %v", bad, err)
		}
	}
	for _, bad := range []string{"60", "@5s", "x@5s", "0@5s", "5@", "5@5s+", "5@5s+-1s", "99999999@1s"} {
		if _, err := Burst(bad); err == nil {
			t.Errorf("the burst %q is accepted", bad)
		}
	}
	spread, err := Burst("4@0s+2s")
	if err != nil || len(spread) != 4 || !spread[3].At.Equal(Origin.Add(1500*time.Millisecond)) {
		t.Errorf("%v, %v", spread, err)
	}
}

func TestDraw(t *testing.T) {
	t.Parallel()
	events := boundary(t)
	o, err := Run(limits.Limit{Algorithm: limits.SlidingLog, N: 100, Period: time.Minute}, events, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := Draw(&b, "a <title>", events, []Line{{"log & more", o}}); err != nil {
		t.Fatal(err)
	}
	decoder, depth := xml.NewDecoder(&b), 0
	texts := ""
	for {
		token, err := decoder.Token()
		if err == io.EOF {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		switch x := token.(type) {
		case xml.StartElement:
			depth++
		case xml.EndElement:
			depth--
		case xml.CharData:
			texts += string(x) + " "
		}
	}
	for _, want := range []string{"a <title>", "log & more", "100 allowed, 20 refused;", "at most 100 in 1m0s", "60 s"} {
		if !strings.Contains(texts, want) {
			t.Errorf("the picture does not say %q", want)
		}
	}
	if depth != 0 {
		t.Errorf("%d elements are open", depth)
	}
	if err := Draw(&b, "", nil, nil); err == nil {
		t.Error("nothing was drawn")
	}
}
