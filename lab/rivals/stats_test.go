package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"math"
	"slices"
	"strings"
	"testing"
)

func TestQuantile(t *testing.T) {
	t.Parallel()
	var values []int64
	for i := range int64(100) {
		values = append(values, 100-i) // 1 to 100
	}
	for q, want := range map[float64]float64{0: 1, 0.5: 50, 0.99: 99, 1: 100} {
		if got := quantile(values, q); got != want {
			t.Errorf("quantile %v = %v, want %v", q, got, want)
		}
	}
}

func TestRatiosAreOfOneRepetition(t *testing.T) {
	t.Parallel()
	// The machine was twice as fast in the second repetition, for both.
	res := newResults(nil)
	for rep, speed := range []float64{1, 2, 1} {
		res.add("w", "base", rep, metrics{"rate": 100 * speed})
		res.add("w", "ours", rep, metrics{"rate": 80 * speed})
	}
	if got := res.ratio("w", "ours", "base", "rate"); got != 0.8 {
		t.Errorf("ratio = %v, want 0.8", got)
	}
	// A repetition in which one is missing has no ratio.
	res.add("w", "base", 3, metrics{"rate": 1})
	res.add("w", "ours", 4, metrics{"rate": 1})
	if got := len(ratios(res.values("w", "ours", "rate"), res.values("w", "base", "rate"))); got != 3 {
		t.Errorf("%d ratios, want 3", got)
	}
	if got := res.ratio("w", "nobody", "base", "rate"); !math.IsNaN(got) {
		t.Errorf("ratio of a rival that was not measured = %v", got)
	}
}

func TestMostOverLeast(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		counts []int64
		want   float64
	}{
		{[]int64{4, 5, 4}, 1}, // the end came after one of the next turns
		{[]int64{2, 5}, 2},
		{[]int64{0, 2}, math.Inf(1)},
		{[]int64{300, 330}, 329. / 300},
	} {
		if got := mostOverLeast(c.counts); got != c.want {
			t.Errorf("%v: %v, want %v", c.counts, got, c.want)
		}
	}
	for _, c := range [][]int64{nil, {0, 1}} {
		if got := mostOverLeast(c); !math.IsNaN(got) {
			t.Errorf("%v: %v, want that it cannot be told", c, got)
		}
	}
}

func TestRatioToBest(t *testing.T) {
	t.Parallel()
	res := newResults(nil)
	for rep, other := range [][2]float64{{2, 4}, {8, 4}} {
		res.add("w", "ours", rep, metrics{"rate": 16})
		res.add("w", "a", rep, metrics{"rate": other[0]})
		res.add("w", "b", rep, metrics{"rate": other[1]})
	}
	if got := ratioToBest("w", "ours", "rate", "a", "b")(res); !slices.Equal(got, []float64{4, 2}) {
		t.Errorf("ratios %v, want 4 and 2", got)
	}
}

func TestArenaNoticesTwoInside(t *testing.T) {
	t.Parallel()
	a := new(arena)
	a.enter(1)
	a.leave(1, 10)
	if last, at := a.enter(2); last != 1 || at != 10 {
		t.Errorf("before 2 was %d, who began to release at %d; want 1 and 10", last, at)
	}
	a.leave(2, 20)
	if err := a.verdict(tally{Entered: 2}); err != nil {
		t.Errorf("a sound run: %v", err)
	}
	if err := a.verdict(tally{Entered: 3}); !errors.Is(err, errNotExclusive) {
		t.Errorf("an update was lost: %v", err)
	}
	a.enter(1)
	a.enter(2)
	a.leave(1, 30)
	a.leave(2, 40)
	if err := a.verdict(tally{Entered: 4}); !errors.Is(err, errNotExclusive) {
		t.Errorf("two were inside: %v", err)
	}
}

func TestGoals(t *testing.T) {
	t.Parallel()
	most := goal{atMost: true, must: 1.25, want: 1.15, format: times}
	least := goal{must: 10, want: 13, format: times}
	for _, c := range []struct {
		g    goal
		v    float64
		want string
	}{
		{most, 1.10, "✓ ≤ 1.25 × [✓ 1.15 ×]"},
		{most, 1.20, "✓ ≤ 1.25 × [✗ 1.15 ×]"},
		{most, 1.30, "✗ ≤ 1.25 × [✗ 1.15 ×]"},
		{least, 14, "✓ ≥ 10.0 × [✓ 13.0 ×]"},
		{least, 9, "✗ ≥ 10.0 × [✗ 13.0 ×]"},
	} {
		if got := c.g.verdict(c.v); got != c.want {
			t.Errorf("verdict of %v: %q, want %q", c.v, got, c.want)
		}
	}

	// Every goal is about something that is measured.
	res := newResults(allWorkloads())
	for _, w := range res.workloads {
		for _, name := range w.names {
			m := metrics{}
			for _, metric := range []string{"p50", "rate", "handoffs", "fairness", "spread", "across", "commands", "pushes", "requests", "commits", "lost", "uneven", "waiting"} {
				m[metric] = 1
			}
			res.add(w.name, name, 0, m)
		}
	}
	if got := len(res.goalTable().Rows); got != len(goals) {
		t.Errorf("%d goals have figures, want all %d", got, len(goals))
	}
}

func TestWorkloadsAreWhole(t *testing.T) {
	t.Parallel()
	for _, w := range allWorkloads() {
		for _, name := range w.names {
			if _, err := findRival(w.system, name); err != nil {
				t.Errorf("%s: %v", w.name, err)
			}
		}
		if w.base != "" && !slices.Contains(w.names, w.base) {
			t.Errorf("%s: its base %q is not measured", w.name, w.base)
		}
	}
}

func TestReports(t *testing.T) {
	t.Parallel()
	workloads, unknown := choose(allWorkloads(), "redis-c64*, nothing")
	if got := names(workloads); got != "redis-c64 redis-c64-pin" || len(unknown) != 1 {
		t.Fatalf("chose %q, not found %q", got, unknown)
	}
	res := newResults(workloads[:1])
	for rep := range 3 {
		res.add("redis-c64", "raw-blpop", rep, metrics{"handoffs": 10_000, "fairness": 1})
		res.add("redis-c64", "redislock", rep, metrics{"handoffs": 1_000, "fairness": math.Inf(1), "handoff": math.NaN()})
		res.add("redis-c64", "baton", rep, metrics{"handoffs": 120_000, "fairness": 1.01})
	}
	m := method{Lines: []string{"a line"}, Notes: []string{"a < note"}, Rivals: []methodRival{{"x", "y"}}}

	var text bytes.Buffer
	if err := writeText(&text, res, m); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"12.0 ×", "0.10 ×", "120k", "∞", "✓ ≥ 10.0 × [✗ 13.0 ×]", "12.0–12.0", "a line", "a < note"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("the table lacks %q:\n%s", want, &text)
		}
	}

	var page bytes.Buffer
	if err := writeHTML(&page, res, m); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"12.0 ×", "✓ ≥ 10.0 ×", "a &lt; note", "</html>"} {
		if !strings.Contains(page.String(), want) {
			t.Errorf("the page lacks %q", want)
		}
	}

	var doc bytes.Buffer
	if err := writeJSON(&doc, res, m); err != nil {
		t.Fatal(err)
	}
	var report struct {
		Workloads []struct {
			Name   string
			Rivals []struct {
				Name          string
				Median, Ratio map[string]any
				Repetitions   []map[string]any
			}
		}
		Goals []map[string]any
	}
	if err := json.Unmarshal(doc.Bytes(), &report); err != nil {
		t.Fatalf("%v:\n%s", err, &doc)
	}
	if len(report.Workloads) != 1 || len(report.Workloads[0].Rivals) != 3 || len(report.Goals) != 2 {
		t.Fatalf("not what was measured:\n%s", &doc)
	}
	for _, r := range report.Workloads[0].Rivals {
		switch {
		case len(r.Repetitions) != 3:
			t.Errorf("%s has %d repetitions", r.Name, len(r.Repetitions))
		case r.Name == "baton" && r.Ratio["handoffs"] != 12.0:
			t.Errorf("the ratio of baton is %v", r.Ratio["handoffs"])
		case r.Name == "redislock" && (r.Median["fairness"] != "+Inf" || r.Median["handoff"] != nil):
			t.Errorf("redislock's figures that are no numbers: %v", r.Median)
		}
	}
}

func TestRequestParser(t *testing.T) {
	t.Parallel()
	const set = "*3\r\n$3\r\nSET\r\n$9\r\n*1\r\n$4\r\nx\r\n$2\r\nid\r\n" // the key looks like a command
	const ping = "*1\r\n$4\r\nPING\r\n"
	const empty = "*2\r\n$3\r\nGET\r\n$0\r\n\r\n"
	text := set + ping + empty + set
	for size := 1; size <= len(text); size++ { // cut anywhere
		var p requestParser
		got := int64(0)
		for b := range slices.Chunk([]byte(text), size) {
			got += p.feed(b)
		}
		if got != 4 {
			t.Fatalf("in pieces of %d bytes: %d commands, want 4", size, got)
		}
	}
}

// A report that was kept as JSON says the same as the run did, in any format.
func TestReportFromJSON(t *testing.T) {
	t.Parallel()
	all := allWorkloads()
	res := newResults(all)
	for rep := range 3 {
		res.add("redis-pair", "raw", rep, metrics{"p50": 1000, "p99": math.Inf(1)})
		res.add("redis-pair", "baton", rep, metrics{"p50": 1100 + 10*float64(rep), "p99": math.NaN()})
	}
	m := method{Notes: []string{"a note"}, Lines: []string{"one line"}, Rivals: []methodRival{{"redis raw", "a | b"}}}
	var kept bytes.Buffer
	if err := writeJSON(&kept, res, m); err != nil {
		t.Fatal(err)
	}
	again, how, err := readJSON(&kept, all)
	if err != nil {
		t.Fatal(err)
	}
	for name, write := range map[string]func(io.Writer, *results, method) error{"table": writeText, "json": writeJSON, "html": writeHTML, "markdown": writeMarkdown} {
		var want, got bytes.Buffer
		if err := errors.Join(write(&want, res, m), write(&got, again, how)); err != nil {
			t.Fatal(err)
		}
		if got.String() != want.String() {
			t.Errorf("%s:\n%s\nwant\n%s", name, got.String(), want.String())
		}
		if name == "markdown" && !strings.Contains(got.String(), "| redis, pair pinned to one CPU, p50 ÷ raw | 1.11 × |") {
			t.Errorf("no goal in\n%s", got.String())
		}
	}
	if _, _, err := readJSON(strings.NewReader(`{"workloads":[{"name":"nonsense"}]}`), all); err == nil || !strings.Contains(err.Error(), "nonsense") {
		t.Errorf("an unknown workload: %v", err)
	}
}
