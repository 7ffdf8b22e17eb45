package scale

import (
	"bytes"
	_ "embed"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"text/template"

	"github.com/batonhq/baton/lab/measure"
)

//go:embed scale.md.tmpl
var text string

func writePage(root string, r *results) error {
	page, err := makePage(r)
	if err != nil {
		return fmt.Errorf("lab/results/scale.md: %w", err)
	}
	return os.WriteFile(filepath.Join(root, "lab", "results", "scale.md"), page, 0o644)
}

func makePage(r *results) ([]byte, error) {
	t, err := template.New("page").Funcs(template.FuncMap{"join": strings.Join}).Parse(text)
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	err = t.Execute(&b, view{r})
	return b.Bytes(), err
}

// view is the data of the template. A row is a line of a table; the template has the table's
// head.
type view struct{ *results }

const none = "–"

// number writes a whole number with spaces between thousands.
func number(n int) string {
	s := strconv.Itoa(n)
	for i := len(s) - 3; i > 0; i -= 3 {
		s = s[:i] + " " + s[i:]
	}
	return s
}

func row(cells ...string) string { return "| " + strings.Join(cells, " | ") + " |\n" }

// head is the first two lines of a table with a column for each store.
func (v view) head(names []string) string {
	return row(append([]string{""}, names...)...) + "|---" + strings.Repeat("|---", len(names)) + "|\n"
}

// names are the stores, as the columns of a table.
func (v view) names() (all []string) {
	for _, s := range v.Stores {
		all = append(all, s.Name)
	}
	return all
}

func percent(f float64) string {
	switch p := 100 * f; {
	case math.IsNaN(p):
		return none
	case p < 0.1:
		return "<0.1 %"
	case p >= 1000:
		return "×" + measure.Count(f)
	case p > 100:
		return "×" + measure.Digits(f)
	case p < 10:
		return strconv.FormatFloat(p, 'f', 1, 64) + " %"
	default:
		return strconv.FormatFloat(p, 'f', 0, 64) + " %"
	}
}

// The rows of the first table's demand.
var (
	demandLeases    = []int{1000, 10_000, 100_000, 1_000_000}
	demandPairs     = []int{100, 1000, 10_000, 100_000}
	demandDecisions = []int{1000, 10_000, 100_000}
)

const (
	demandEach = 100 // leases of a process
	demandTTL  = 15  // seconds
)

// LeaseShares, PairShares and DecisionShares say which part of one server a demand takes.
func (v view) LeaseShares(in, leases string) string {
	text := ""
	for _, n := range demandLeases {
		cells := []string{number(n) + " " + leases + fmt.Sprintf(in, number(n/demandEach))}
		for i := range v.Stores {
			cells = append(cells, percent(v.Stores[i].share(n, demandEach, demandTTL)))
		}
		text += row(cells...)
	}
	return text
}

func (v view) PairShares(what string) string {
	text := ""
	for _, n := range demandPairs {
		cells := []string{number(n) + " " + what}
		for _, s := range v.Stores {
			cells = append(cells, percent(float64(n)/s.Pairs.Most))
		}
		text += row(cells...)
	}
	return text
}

func (v view) DecisionShares(what string) string {
	text := ""
	for _, n := range demandDecisions {
		cells := []string{number(n) + " " + what}
		for _, s := range v.Stores {
			cells = append(cells, percent(s.decisions(n)))
		}
		text += row(cells...)
	}
	return text
}

// decisions is the part of a server that n decisions per second on many keys take.
func (s *store) decisions(n int) float64 {
	if len(s.Limits) == 0 {
		return math.NaN()
	}
	return float64(n) / s.Limits[len(s.Limits)-1].Most
}

// ByStore is the head of a table with a column for each store.
func (v view) ByStore() string { return v.head(v.names()) }

// Waits has a row for each number of waiters: how long the last of them waits.
func (v view) Waits(what string) string {
	text := ""
	for _, n := range []int{10, 100, 1000, 10_000} {
		cells := []string{number(n) + " " + what}
		for i := range v.Stores {
			h, measured := v.Stores[i].handOver(n)
			cell := measure.Span(float64(n) * h)
			if !measured && !math.IsNaN(h) {
				cell = "≈ " + cell
			}
			cells = append(cells, cell)
		}
		text += row(cells...)
	}
	return text
}

// handOver is the seconds from one holder to the next with n waiters, or with the most that
// were measured.
func (s *store) handOver(n int) (seconds float64, measured bool) {
	seconds = math.NaN()
	for _, w := range s.Waiters {
		if w.How == "apart" && w.sound() && w.N <= n {
			seconds, measured = w.HandOver, w.N == n
		}
	}
	return seconds, measured
}

// Bill has a row for each TTL and number of leases of a process: the requests that keep one
// lease for an hour.
func (v view) Bill(alone, each string) string {
	text := ""
	for _, ttl := range []int{5, 15, 60, 300} {
		for _, n := range []int{1, 10, 100, 10_000} {
			cells := []string{fmt.Sprintf("%d s", ttl), alone}
			if n > 1 {
				cells[1] = fmt.Sprintf(each, number(n))
			}
			for i := range v.Stores {
				s := &v.Stores[i]
				if s.Name == "memory" {
					continue
				}
				cell := measure.Digits(s.perHour(n, float64(ttl)))
				if cell == "0.00" {
					cell = "<0.01"
				}
				cells = append(cells, cell)
			}
			text += row(cells...)
		}
	}
	return text
}

// BillHead is the head of Bill's table.
func (v view) BillHead(process string) string {
	names := slices.DeleteFunc(v.names(), func(n string) bool { return n == "memory" })
	return row(append([]string{"TTL", process}, names...)...) + "|---|---" + strings.Repeat("|---", len(names)) + "|\n"
}

// Carries has a row for each store: the capacity of one server.
func (v view) Carries() string {
	text := ""
	for i := range v.Stores {
		s := &v.Stores[i]
		perCPU := func(cpu float64) string {
			if cpu == 0 {
				return none
			}
			return measure.Count(1 / cpu)
		}
		cells := []string{s.Name, s.About + ", " + s.Setup, measure.Count(s.Pairs.Most), perCPU(s.Pairs.ServerCPU)}
		if len(s.Limits) > 0 {
			for _, l := range s.Limits {
				cells = append(cells, measure.Count(l.Most))
			}
			cells = append(cells, perCPU(s.Limits[len(s.Limits)-1].ServerCPU))
		} else {
			cells = append(cells, none, none, none)
		}
		half := 0.5 / s.share(demandEach, demandEach, demandTTL) * demandEach
		cells = append(cells, measure.Count(half))
		text += row(cells...)
	}
	return text
}

// Held has a row for each store and number of leases.
func (v view) Held() string {
	text := ""
	for _, s := range v.Stores {
		for _, l := range s.Leases {
			if l.Failed != "" {
				text += row(append([]string{s.Name, number(l.N), none, measure.Count(s.requests(1, l.N, v.period()))}, strings.Split(strings.Repeat(none, 11), "")...)...)
				continue
			}
			bytes := func(n float64) string {
				if n == 0 || l.N < 1000 {
					return none
				}
				return measure.Digits(n)
			}
			server, commits := measure.Span(l.ServerCPU), measure.Count(l.Commits)
			if l.ServerCPU <= 0 {
				server = none
			}
			if l.Commits == 0 {
				commits = none
			}
			cells := []string{
				s.Name, number(l.N), measure.Count(l.Requests), measure.Count(s.requests(1, l.N, v.period())), commits,
				number(int(l.Lost)), measure.Span(l.Took), measure.Span(l.ClientCPU), server, bytes(l.ClientBytes), bytes(l.ServerBytes),
			}
			if b := l.Beside; b != nil {
				cells = append(cells, spans(b)...)
			} else {
				cells = append(cells, none, none, none, none)
			}
			text += row(cells...)
		}
	}
	return text
}

// spans are p50, p90, p99 and p99.9.
func spans(o *opened) (cells []string) {
	for _, q := range []float64{0.5, 0.9, 0.99, 0.999} {
		cells = append(cells, measure.Span(o.at(q)))
	}
	return cells
}

// Open has a row for each store and load: latencies of pairs, or of decisions.
func (v view) Open() string {
	text := ""
	for _, s := range v.Stores {
		for _, o := range s.Pairs.Open {
			text += row(append([]string{s.Name, percent(o.Load), measure.Count(o.Rate)}, spans(&o)...)...)
		}
	}
	return text
}

func (v view) Decided() string {
	text := ""
	for _, s := range v.Stores {
		for _, l := range s.Limits {
			for _, o := range l.Open {
				text += row(append([]string{s.Name, number(l.Keys), percent(o.Load), measure.Count(o.Rate)}, spans(&o)...)...)
			}
		}
	}
	return text
}

// Queued has a row for each store and number of waiters that each have a position.
func (v view) Queued() string {
	text := ""
	for _, s := range v.Stores {
		for _, w := range s.Waiters {
			if w.How != "apart" {
				continue
			}
			cells := []string{s.Name, number(w.N), measure.Count(w.Requests), measure.Span(w.HandOver), measure.Digits(w.Cost)}
			if !w.sound() {
				cells = []string{s.Name, number(w.N), none, none, none}
			} else if s.Name == "memory" {
				cells[2], cells[4] = none, none
			}
			text += row(cells...)
		}
	}
	return text
}

// Failures are the measurements that did not end.
func (v view) Failures() (all []string) {
	for _, s := range v.Stores {
		for _, w := range s.Waiters {
			if w.How == "apart" && !w.sound() {
				all = append(all, fmt.Sprintf("%s, %s", s.Name, number(w.N)))
			}
		}
	}
	return all
}

// Patience is the bound on the time for taking leases or positions, in seconds.
func (v view) Patience() string { return strconv.Itoa(int(full.patience.Seconds())) }

// Many has a row for each store and number of processes.
func (v view) Many() string {
	text := ""
	for _, s := range v.Stores {
		for _, x := range s.Processes {
			server := none
			if x.N > 1 { // with one process, the server's own changes count more
				server = kib(x.ServerBytes)
			}
			text += row(s.Name, number(x.N), measure.Count(x.Requests), measure.Count(s.requests(x.N, x.Leases, v.period())),
				measure.Span(x.ServerCPU), server, kib(x.ClientBytes))
		}
		if len(s.Processes) == 0 {
			continue
		}
		last := s.Processes[len(s.Processes)-1]
		for _, n := range []int{1000, 10_000} {
			f := float64(n) / float64(last.N)
			text += row(s.Name, "≈ "+number(n), none, measure.Count(s.requests(n, last.Leases, v.period())), "≈ "+measure.Span(f*last.ServerCPU), none, none)
		}
	}
	return text
}

func kib(bytes float64) string { return measure.Count(bytes/1024) + " KiB" }

// Saved has a row for each store: requests for one acquisition of a busy key.
func (v view) Saved() string {
	text := ""
	for _, s := range v.Stores {
		if s.Name == "memory" {
			continue
		}
		cells := []string{s.Name}
		for _, how := range []string{"apart", "local", "agent"} {
			cell := none
			for _, w := range s.Waiters {
				if w.How == how && w.N == full.local && w.sound() {
					cell = measure.Digits(w.Cost) + ", " + measure.Span(w.HandOver)
				}
			}
			cells = append(cells, cell)
		}
		for _, n := range []int{10_000, 100_000} {
			cell := none
			if l := s.leases(n); l != nil && l.Requests > 0 && l.Lost == 0 {
				cell = measure.Count(float64(l.N) / l.Requests)
			}
			cells = append(cells, cell)
		}
		text += row(cells...)
	}
	return text
}

// misses are the errors of the formula and the simulation on a store, as factors.
type misses struct {
	requests             float64 // renewal requests of the most leases that were counted
	processes            float64 // of the most processes
	took                 float64 // the renewal of the most leases, from fewer
	p50, p99             float64 // pairs at the highest load
	besideP50, besideP99 float64 // pairs beside the most leases
}

func (s *store) misses(period float64) *misses {
	nan := math.NaN()
	e := &misses{nan, nan, nan, nan, nan, nan, nan}
	held := s.held()
	if len(held) == 0 {
		return e
	}
	l := held[len(held)-1]
	if most := s.counted(); most != nil {
		e.requests = ratio(s.requests(1, most.N, period), most.Requests)
	}
	if n := len(s.Processes); n > 0 {
		x := s.Processes[n-1]
		e.processes = ratio(s.requests(x.N, x.Leases, period), x.Requests)
	}
	fewer := s.model(l.N - 1)
	e.took = ratio(simulate(fewer, demand{leases: l.N, processes: 1, period: 1000}, 1000).longest, l.Took)
	o := s.Pairs.Open[min(1, len(s.Pairs.Open)-1)]
	p := simulate(fewer, demand{pairs: o.Rate, period: period}, 2)
	e.p50, e.p99 = ratio(p.at(0.5), o.at(0.5)), ratio(p.at(0.99), o.at(0.99))
	if b := l.Beside; b != nil {
		p := simulate(fewer, demand{pairs: b.Rate, leases: l.N, processes: 1, period: period}, 2*period)
		e.besideP50, e.besideP99 = ratio(p.at(0.5), b.at(0.5)), ratio(p.at(0.99), b.at(0.99))
	}
	return e
}

// Formulas has a row for each store: the requests of a process at a tick for n leases, and
// those in a second besides.
func (v view) Formulas() string {
	text := ""
	for i := range v.Stores {
		s := &v.Stores[i]
		b := bills[s.Name]
		cell := "1"
		switch {
		case b.slots:
			cell = "16384 × (1 − (1 − 1 ÷ 16384)^`n`)"
		case b.claims > 0:
			cell = fmt.Sprintf("⌈`n` ÷ %d⌉", b.claims)
			if b.each > 1 {
				cell = fmt.Sprintf("%.0f × %s", b.each, cell)
			}
			if b.process > 0 {
				cell = fmt.Sprintf("%.0f + %s", b.process, cell)
			}
		}
		text += row(s.Name, cell, measure.Digits(s.background()))
	}
	return text
}

func (v view) period() float64 { return full.ttl.Seconds() / 3 }

// Errors has a row for each store, and one for the medians.
func (v view) Errors(median string) string {
	text := ""
	all := make([][]float64, 7)
	line := func(name string, factors []float64) {
		cells := []string{name}
		for _, f := range factors {
			cell := none
			if !math.IsNaN(f) {
				cell = "×" + strconv.FormatFloat(f, 'f', 2, 64)
			}
			cells = append(cells, cell)
		}
		text += row(cells...)
	}
	for i := range v.Stores {
		factors := v.Stores[i].misses(v.period()).factors()
		for n, f := range factors {
			all[n] = append(all[n], f)
		}
		line(v.Stores[i].Name, factors)
	}
	var medians []float64
	for _, f := range all {
		medians = append(medians, measure.Median(f))
	}
	line("**"+median+"**", medians)
	return text
}

func (m *misses) factors() []float64 {
	return []float64{m.requests, m.processes, m.took, m.p50, m.p99, m.besideP50, m.besideP99}
}

// Beyond has a row for each store that many machines share and number of leases, beside
// pairs at a given rate, from the simulation.
func (v view) Beyond() string {
	text := ""
	for i := range v.Stores {
		s := &v.Stores[i]
		if s.Name != "Redis" && s.Name != "PostgreSQL" && s.Name != "etcd" {
			continue
		}
		for _, n := range []int{10_000, 100_000, 1_000_000} {
			d := demand{pairs: beside * s.Pairs.Most, leases: n, processes: n / demandEach, period: demandTTL / 3}
			p := simulate(s.model(math.MaxInt), d, 2*d.period)
			cells := []string{s.Name, number(n), number(d.processes), measure.Count(d.pairs)}
			if p.busy > 0.95 {
				cells = append(cells, percent(beside+s.share(n, demandEach, demandTTL)), none, none)
			} else {
				cells = append(cells, percent(p.busy), measure.Span(p.at(0.5)), measure.Span(p.at(0.99)))
			}
			text += row(cells...)
		}
	}
	return text
}

// Figures for sentences.
func (v view) Load() string    { return strconv.FormatFloat(v.Machine.LoadBefore, 'f', 1, 64) }
func (v view) Busy() bool      { return v.Machine.LoadBefore > 0.5 }
func (v view) Memory() string  { return strconv.FormatFloat(v.Machine.MemoryGiB, 'f', 0, 64) }
func (v view) TTL() string     { return strconv.Itoa(int(full.ttl.Seconds())) }
func (v view) Period() string  { return strconv.Itoa(int(full.ttl.Seconds() / 3)) }
func (v view) Local() string   { return number(full.local) }
func (v view) Each() int       { return full.each }
func (v view) Callers() int    { return callers }
func (v view) OpenFor() string { return strconv.FormatFloat(full.open.Seconds(), 'g', -1, 64) }
func (v view) MaxRate() string { return number(maxRate) }

// ClusterSlots is how many slots ten thousand names use.
func (v view) ClusterSlots() string { return number(int(bills["Redis Cluster"].requests(10_000))) }
