package verify

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/history"
)

// The page of a run with everything awkward is self-contained and shows it.
func TestPage(t *testing.T) {
	t.Parallel()
	const ms = int64(time.Millisecond)
	h := &history.History{
		Marks: []history.Mark{
			{At: 1000 * ms, What: history.Begins},
			{At: 1100 * ms, What: history.Breaks, Text: `client <1> & "stops"`},
			{At: 1300 * ms, What: history.Heals, Text: `client <1> & "stops"`},
			{At: 1500 * ms, What: history.Ends},
		},
		Writes: []history.Write{{Op: history.Op{Client: 1, Number: 1}, Key: "k<1>", Token: 7, At: 1260 * ms, Stale: true}},
	}
	for n := range int64(mostBars + 50) {
		at := 1010*ms + n*ms/10
		h.Holds = append(h.Holds, history.Hold{
			Op: history.Op{Client: 1 + int(n%3), Number: n}, Key: "k<1>", Mode: []history.Mode{history.Exclusive, history.Shared, history.Permits}[n%3],
			Result: history.Granted, Token: n, SureFrom: at, SureTo: at + 1, LostAt: at + 2*(n%2), Cause: "gone & lost",
		})
	}
	r := &Report{URL: "redis://***@h", Trials: []*Trial{
		{
			Fault: "f04", Name: "long-stop", Verdict: Broken, History: h, Began: 1000 * ms, Why: []string{"slow < fast"},
			Promises:   map[check.Promise]bool{check.Exclusive: false, check.Fenced: true},
			Violations: []check.Violation{{Promise: check.Exclusive, Check: "overlap", Key: "k<1>", Text: "both & more", From: 1200 * ms, To: 1201 * ms}, {Promise: check.Lively, Check: "leaks", Key: "gone"}},
		},
		{Fault: "f07", Verdict: Skipped, Why: []string{"it needs wires"}},
		{Fault: "f01", Verdict: Held, History: &history.History{}},
	}}
	var b bytes.Buffer
	if err := r.WriteHTML(&b); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	count := map[string]int{}
	for d := xml.NewDecoder(strings.NewReader(text)); ; {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			count[e.Name.Local]++
		}
	}
	if count["figure"] != 2 || count["rect"] < mostBars {
		t.Errorf("%v", count)
	}
	for _, forbidden := range []string{"<script", "<link", "<img", "http:", "https:", "url(", "@import", "src=", "NaN", "Inf", "ZgotmplZ"} {
		if strings.Contains(text, forbidden) {
			t.Errorf("the page has %q", forbidden)
		}
	}
	for _, wanted := range []string{"prefers-color-scheme: dark", "both &amp; more", "1500 longest of 1550", "stale write with token 7", "it needs wires", "client &lt;1&gt;", "slow &lt; fast"} {
		if !strings.Contains(text, wanted) {
			t.Errorf("the page lacks %q", wanted)
		}
	}
}
