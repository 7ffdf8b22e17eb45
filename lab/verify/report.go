package verify

import (
	"cmp"
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/shellword"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/history"
	"github.com/batonhq/baton/open"
)

// A Report is the result of Run.
type Report struct {
	Store    string        `json:"store"` // a short name, as in Traits
	URL      string        `json:"url"`   // without its secrets
	Local    string        `json:"local,omitempty"`
	Seed     uint64        `json:"seed"`
	Clients  int           `json:"clients"`
	Ways     []string      `json:"ways,omitempty"` // to the store, in turn
	TTL      time.Duration `json:"ttl"`            // the longest of all trials; nanoseconds, like all durations
	Bound    time.Duration `json:"bound"`
	For      time.Duration `json:"for"`
	Began    time.Time     `json:"began"`
	Platform string        `json:"platform"`
	Repeat   string        `json:"repeat"` // the command that repeats it
	Trials   []*Trial      `json:"trials"`
}

// Promises are the promises that a report covers, in its order.
var Promises = []check.Promise{check.Exclusive, check.Fenced, check.Lively, check.Bounded}

// A Verdict is the result of a trial.
type Verdict string

const (
	Held    Verdict = "held"    // no violation was found
	Broken  Verdict = "broken"  // a promise was broken
	Excused Verdict = "excused" // a promise was broken that is not given under this fault
	Invalid Verdict = "invalid" // it proves nothing: see Why
	Skipped Verdict = "skipped" // the fault cannot be tried here: see Why
)

// A Trial is a run with one fault.
type Trial struct {
	Fault   string   `json:"fault"`
	Name    string   `json:"name"`
	Does    string   `json:"does"`
	Verdict Verdict  `json:"verdict"`
	Why     []string `json:"why,omitempty"` // why it is invalid or was skipped

	// Claim is the promise for the kind of store under the fault, a sign for each of E, F
	// and L: "+" holds, "-" may break, "b" may break for a while.
	Claim string `json:"claim,omitempty"`
	// Promises says for each promise whether it was kept. Promises that were not checked
	// are missing.
	Promises   map[check.Promise]bool `json:"promises,omitempty"`
	Violations []check.Violation      `json:"violations,omitempty"` // in the order of time

	TTL        time.Duration `json:"ttl"`
	Rounds     int           `json:"rounds"`     // how often the fault set in
	Killed     int           `json:"killed"`     // clients
	Keys       int           `json:"keys"`       // of locks, without those of permits and limits
	Goroutines int           `json:"goroutines"` // of all clients
	Looked     check.Looked  `json:"looked"`
	Told       Told          `json:"told"`      // of locks, by the events of clients that did not die
	Decisions  int           `json:"decisions"` // of limiters
	Unknown    int           `json:"unknown"`   // attempts with no answer
	Lost       int           `json:"lost"`      // leases that ended before their release
	Stall      time.Duration `json:"stall"`     // the machine's longest, outside of the fault
	Busy       float64       `json:"busy"`      // the share of the time in which runnable processes had to wait
	Took       time.Duration `json:"took"`
	Began      int64         `json:"began"`  // on the history's clock
	Repeat     string        `json:"repeat"` // the command that repeats it

	History *history.History `json:"-"`
}

func (r *runner) newReport() *Report {
	return &Report{
		Store: r.traits.Store, URL: open.Redact(cmp.Or(r.place.direct, r.place.url(0))), Local: r.cfg.Local, Seed: r.cfg.Seed, Clients: r.cfg.Clients, Ways: r.cfg.Ways,
		TTL: r.cfg.TTL, Bound: r.bound, For: r.cfg.For, Began: time.Now().UTC(), Platform: runtime.GOOS + "/" + runtime.GOARCH,
		Repeat: r.repeat(cmp.Or(strings.Join(r.cfg.Faults, ","), "all")),
	}
}

// repeat is the command that repeats the run. It has no secrets of a URL.
func (r *runner) repeat(faults string) string {
	words := []string{"baton-lab", "verify", "--store", shellword.Quote(open.Redact(r.cfg.URL))}
	if r.cfg.Local != "" {
		words[2], words[3] = "--local", shellword.Quote(r.cfg.Local)
	}
	words = append(words, "--fault", faults, "--seed", strconv.FormatUint(r.cfg.Seed, 10), "--for", r.cfg.For.String(),
		"--clients", strings.Join(append([]string{strconv.Itoa(r.cfg.Clients)}, r.cfg.Ways...), ","), "--ttl", r.cfg.TTL.String())
	if r.cfg.Brief {
		words = append(words, "--brief")
	}
	if r.cfg.Bound != 0 {
		words = append(words, "--bound", r.cfg.Bound.String())
	}
	if r.cfg.Stall != defaultStall {
		words = append(words, "--max-stall", r.cfg.Stall.String())
	}
	return strings.Join(words, " ")
}

// invalid adds a reason why the trial proves nothing.
func (t *Trial) invalid(format string, args ...any) {
	t.Why = append(t.Why, fmt.Sprintf(format, args...))
}

// fill adds the results of a history.
func (r *Trial) fill(t *trial, h *history.History, found check.Findings) {
	r.History, r.Looked, r.Violations = h, found.Looked, found.Violations
	r.Keys, r.Rounds, r.Killed, r.Decisions = t.plan.keys, t.rounds, len(h.Killed()), len(h.Decisions)
	r.Began, r.Stall = h.Mark(history.Begins), t.stalls.worst(h.Marks)
	r.Lost, r.TTL = found.Looked.Lost, t.cfg.TTL
	r.Busy = t.stalls.busy(r.Began, h.Mark(history.Ends))
	for _, n := range t.plan.goroutines {
		r.Goroutines += n
	}
	for i := range h.Holds {
		o := &h.Holds[i]
		if o.Result == history.Unknown {
			r.Unknown++
		}
	}
	if len(r.Why) > 0 { // it did not end in order, so liveness was not owed
		r.Violations = slices.DeleteFunc(r.Violations, func(v check.Violation) bool { return v.Promise == check.Lively })
	}

	for _, u := range found.Undecided {
		r.invalid("%s: %s", u.Check, u.Text)
	}
	if r.Stall > t.cfg.Stall {
		r.invalid("the machine stood still for %v, outside of the fault: at most %v is tolerated; run it where less is going on", r.Stall.Round(time.Millisecond), t.cfg.Stall)
	}
	if t.fault.ID != quiet && h.Mark(history.Breaks) == 0 {
		r.invalid("the fault never set in")
	}
	if floor := max(5, int(t.cfg.For/time.Second)/2); r.Looked.Granted < floor {
		r.invalid("only %d locks were granted, of at least %d", r.Looked.Granted, floor)
	}
	r.Promises = make(map[check.Promise]bool)
	r.Promises[check.Exclusive] = true
	r.Promises[check.Fenced] = true
	r.Promises[check.Lively] = true
	if r.Decisions > 0 {
		r.Promises[check.Bounded] = true
	}
	for _, v := range r.Violations {
		if v.Promise != "" {
			r.Promises[v.Promise] = false
		}
	}
	r.excuse(&t.stalls)
}

// excuse makes the trial invalid if a waiter was late, or a lease was lost, and the machine
// was overloaded at each of those times. The average of a run does not show a stall of some
// seconds.
func (r *Trial) excuse(s *stalls) {
	idle := 1.0
	for _, v := range r.Violations {
		if v.Promise == check.Lively {
			idle = min(idle, s.busy(min(v.From, v.To-int64(time.Second)), v.To))
		}
	}
	if !r.Promises[check.Lively] && idle > overloaded {
		r.invalid("somebody waited for too long, or lost a lease, on a machine that was overloaded: what wanted to run had to wait for %.0f%% of the time", 100*idle)
	}
}

// overloaded is the busy share of a machine above which liveness is not owed. Kept promises
// count as kept even then.
const overloaded = 0.5

// skip adds the reason why the fault cannot be tried.
func (t *Trial) skip(kind, lacks string) {
	t.Verdict = Skipped
	t.Why = []string{"it needs " + lacks}
	if why := fault.WhyLeft(kind, t.Fault); why != "" {
		t.Why = []string{why}
	}
}

// decide sets the verdict, with the claim for a kind of store unless that is "". An invalid
// run can still show a broken promise: a slow machine excuses only late waiters.
func (t *Trial) decide(kind string) {
	claim, _ := fault.Expect(kind, t.Fault)
	if kind != "" {
		t.Claim = claim.String()
	}
	mayBreak := func(p check.Promise) bool {
		sign := claim.Of(p)
		return sign == fault.Breaks || sign == fault.Bounded && p != check.Lively
	}
	broken := func(serious bool) bool {
		return slices.ContainsFunc(t.Violations, func(v check.Violation) bool {
			return !mayBreak(v.Promise) && (!serious || v.Promise != check.Lively)
		})
	}
	switch {
	case broken(true) || broken(false) && len(t.Why) == 0:
		t.Verdict = Broken
	case len(t.Why) > 0:
		t.Verdict = Invalid
	case len(t.Violations) > 0:
		t.Verdict = Excused
	default:
		t.Verdict = Held
	}
}

// Verdict is the worst of all trials: Broken, Invalid, Excused, Held; Skipped if no fault
// could be tried.
func (r *Report) Verdict() Verdict {
	worst := Skipped
	order := []Verdict{Skipped, Held, Excused, Invalid, Broken}
	for _, t := range r.Trials {
		if slices.Index(order, t.Verdict) > slices.Index(order, worst) {
			worst = t.Verdict
		}
	}
	return worst
}

// keep writes the history to the folder of Config.Keep.
func (t *trial) keep(h *history.History) error {
	if t.cfg.Keep == "" {
		return nil
	}
	b, err := json.Marshal(h)
	if err != nil {
		return err
	}
	return os.WriteFile(t.path("history.json"), b, 0o600)
}
