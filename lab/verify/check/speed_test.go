package check

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// bigHolds is the number of TestBig's holds.
var bigHolds = 200_000

// big is a history of many holds on a few busy keys, each with eight waiters, and of as many
// decisions.
func big(holds int) *history.History {
	const keys, crowd, length = 8, 8, 10
	h := &history.History{}
	end := int64(1000)
	for n := range holds {
		key, turn := n%keys, int64(n/keys)
		at := 1000 + turn*length
		o := hold(1, history.Exclusive, turn+1, at, at+length-4)
		switch key {
		case 0: // three readers, and then a writer
			if turn%4 != 3 {
				o = hold(1, history.Shared, turn+1, at, at+(3-turn%4)*length-4)
			}
		case 1:
			o = hold(1, history.Permits, turn+1, at, at+2*length-4)
			o.Of = 2
		}
		o.Op = history.Op{Client: n % 24, Number: int64(n)}
		o.Key = fmt.Sprint(key)
		o.Called -= crowd * length
		o.Waits = true
		h.Holds = append(h.Holds, o)
		h.Decisions = append(h.Decisions, history.Decision{Op: o.Op, Key: "limit", N: 1, Called: at, Returned: at + 3, Result: history.Granted})
		if o.Mode == history.Exclusive {
			h.Writes = append(h.Writes, history.Write{Op: o.Op, Key: o.Key, Token: o.Token, At: o.SureFrom, Accepted: true})
		}
		end = max(end, o.ReleaseReturned)
	}
	h.Marks = []history.Mark{{At: 500, What: history.Healed}, {At: end + 1, What: history.Drains}, {At: end + 1, What: history.Ends}}
	h.Sort()
	return h
}

// A long run is checked in a short time.
func TestBig(t *testing.T) {
	t.Parallel()
	h := big(bigHolds)
	from := time.Now()
	f := Run(h, Rules{TTL: 1000, Bound: 1000, Limits: map[string]Limit{"limit": {Most: 1 << 40, Window: time.Second}}})
	took := time.Since(from)
	t.Logf("%d holds and as many decisions took %v: %+v", bigHolds, took, f.Looked)
	if len(f.Violations) > 0 {
		t.Errorf("found %+v", f.Violations[:1])
	}
	for _, u := range f.Undecided {
		if u.Check != "permits" { // whose count is missing
			t.Errorf("%+v", u)
		}
	}
	if f.Looked.PartOps < 2*bigHolds || f.Looked.Waiters != bigHolds || f.Looked.Windows != bigHolds {
		t.Errorf("looked at %+v", f.Looked)
	}
}

// A long run of violations takes no longer, and its report stays readable.
func TestBigAndBroken(t *testing.T) {
	t.Parallel()
	h := big(bigHolds / 4)
	for i := range h.Holds {
		o := &h.Holds[i]
		o.SureTo, o.ReleaseCalled, o.ReleaseReturned, o.Released = 1<<40, 0, 0, ""
		o.Token = int64(i*7919) % int64(len(h.Holds))
	}
	from := time.Now()
	f := Run(h, Rules{TTL: 1000, Bound: 1000, Order: true, Limits: map[string]Limit{"limit": {Most: 0, Window: time.Second}}})
	t.Logf("%d holds took %v: %d violations, found by %v", len(h.Holds), time.Since(from), len(f.Violations), checks(f))
	if got := checks(f); !slices.Equal(got, []string{"linear", "overlap", "tokens", "windows", "writes"}) || len(f.Violations) > 8*4*enough {
		t.Errorf("%d violations, found by %v", len(f.Violations), got)
	}
}

func BenchmarkRun(b *testing.B) {
	h := big(20_000)
	for b.Loop() {
		Run(h, Rules{TTL: 1000, Bound: 1000})
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/20_000, "ns/hold")
}
