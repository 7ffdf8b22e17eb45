package acquire

import (
	"encoding/json"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

var mutate = flag.Bool("mutate", false, "take the rules of the acquisition out one by one, and see that its tests notice")

// A mutation removes one rule from a file: it replaces the text from by the text
// to.
type mutation struct {
	rule, file, from, to string
}

const machineFile, heldFile = "machine.go", "held.go"

var mutations = []mutation{
	{
		"an early push is for this position only if it is not below the ticket", machineFile,
		"early.Token >= g.Ticket && early.Token > 0", "early.Token > 0",
	},
	{
		"an early push is kept", machineFile,
		"a.early = h.Grant\n", "_ = a.early\n",
	},
	{
		"a push below the ticket is of an earlier position", machineFile,
		"h.Grant.Token < max(a.claim.Ticket, a.token)", "false",
	},
	{
		"a push is trusted from the last confirmation of the position", machineFile,
		"deadline := a.confirmed.Add(g.TTL", "deadline := now.Add(g.TTL",
	},
	{
		"a push that cannot be renewed in time is a hint", machineFile,
		"if left < max(g.TTL/3, 2*slow) || !a.terms.shortClaims() {", "if false {",
	},
	{
		"a push from a slow store is renewed at once", machineFile,
		"if left/3 > 2*slow {", "if true {",
	},
	{
		"a position is dated by the request", machineFile,
		"a.confirmed, a.claim.Ticket = sent, r.Grant.Ticket", "a.confirmed, a.claim.Ticket = now, r.Grant.Ticket",
	},
	{
		"a grant is trusted from its request", machineFile,
		"deadline := sent.Add(a.trustFor(g.TTL))\n", "deadline := now.Add(a.trustFor(g.TTL))\n",
	},
	{
		"a renewal is trusted from its request", machineFile,
		"a.deadline = max(a.deadline, sent.Add(a.trustFor(r.Grant.TTL)))", "a.deadline = max(a.deadline, now.Add(a.trustFor(r.Grant.TTL)))",
	},
	{
		"another grant to the same ID is a loss", machineFile,
		"case r.State == driver.Held && r.Grant.Token > a.token && q.phase == held:", "case false:",
	},
	{
		"a grant that was long under way is confirmed first", machineFile,
		"if deadline.Sub(now) < a.trustFor(a.terms.StoreTTL())/2 {", "if false {",
	},
	{
		"a confirmation that comes too late is no lease", machineFile,
		"r.State == driver.Held && deadline.Sub(now) < least", "r.State == driver.Held && deadline.Sub(now) < least-time.Hour",
	},
	{
		"answers to questions of earlier rounds are void", machineFile,
		"if a.round != q.round {", "if false {",
	},
	{
		"an acquisition that begins again begins a round", machineFile,
		"a.hinted = false\n\ta.newRound()", "a.hinted = false",
	},
	{
		"a downgrade begins a round", heldFile,
		"a.phase = downgrading\n\ta.newRound()", "a.phase = downgrading",
	},
	{
		"an answer after the end revives nothing", machineFile,
		"if end, why := a.ValidUntil(); now >= end {\n\t\treturn a.Lose(why)\n\t}\n\tswitch {", "switch {",
	},
	{
		"what is due at its end ends, though a request hangs", machineFile,
		"if now >= end {\n\t\t\treturn q, a.Lose(why)\n\t\t}", "_ = why",
	},
	{
		"a question that is not answered is put again, beside it", machineFile,
		"next = min(end, now.Add(again))", "next = end",
	},
	{
		"a question is planned beside the one that is asked", machineFile,
		"\ta.wake = next\n", "\t_ = next\n",
	},
	{
		"an answer that a hint overtook is asked for again", machineFile,
		"a.hinted = false\n\t\ta.lookSoon()", "a.hinted = false",
	},
	{
		"a renewal that was not answered is tried again before the end", machineFile,
		"a.wake = min(end, now.Add(again))", "a.wake, _ = end, again",
	},
	{
		"that a position was lost says nothing of the grant made from it", machineFile,
		"case q.phase == held:\n\t\treturn a.Lose(Gone)", "case q.phase == held, r.State == driver.Lost:\n\t\treturn a.Lose(Gone)",
	},
	{
		"a confirmation may overtake its request", machineFile,
		"case q.phase == requesting: //", "case false: //",
	},
	{
		"issue looks at the clock", heldFile,
		"if a.phase != held || now >= a.deadline {", "if a.phase != held {",
	},
	{
		"a grant that nobody used in time is given back", machineFile,
		"case !a.leased && why == Expired:", "case false:",
	},
	{
		"an attempt that may have taken effect is given back", machineFile,
		"known := a.phase != requesting || a.retry", "known := a.phase != requesting",
	},
	{
		"only what is in the store's queue, or may be, is passed on", machineFile,
		"if a.phase != queued && !(a.phase == requesting && a.retry) {", "if false {",
	},
	{
		"a request that may have taken effect is passed on", machineFile,
		"a.phase != queued && !(a.phase == requesting && a.retry)", "a.phase != queued",
	},
	{
		"who gets a position has waited for the store only since it came", machineFile,
		"a.outage = a.outage.AsSeenBy(came)\n", "_ = came\n",
	},
	{
		"an attempt that the store has ended gets another ID", machineFile,
		"if a.requested && errors.Is(err, driver.ErrLost) {", "if false && errors.Is(err, driver.ErrLost) {",
	},
	{
		"what has ended is not woken", machineFile,
		"a.phase, a.wake = ended, 0", "a.phase = ended",
	},
	{
		"the ticket of a grant is repeated", machineFile,
		"a.phase, a.claim.Ticket = held, g.Ticket", "a.phase = held",
	},
	{
		"a claim that was told is not handed over", heldFile,
		"a.phase == held && !a.pinned &&", "a.phase == held &&",
	},
	{
		"a rename is in later claims", heldFile,
		"a.claim.Owner = owner\n", "_ = owner\n",
	},
	{
		"a rename that finds no holder ends the lease", heldFile,
		"case errors.Is(err, driver.ErrLost):\n\t\treturn a.gone(now)", "",
	},
	{
		"what the store does not know after the deadline has expired", heldFile,
		"if end, why := a.ValidUntil(); now >= end {\n\t\treturn a.Lose(why)\n\t}\n\treturn a.Lose(Gone)", "return a.Lose(Gone)",
	},
	{
		"a downgrade that ends after the unlock releases nothing that is left taken", heldFile,
		"case a.leaving && a.lost == nil:", "case false:",
	},
	{
		"nor does one without an answer", heldFile,
		"unsure && !(a.leaving && a.lost == nil)", "unsure",
	},
	{
		"the local queue does not keep a lock for ever", heldFile,
		" && now.Sub(a.granted) < maxLocalTime", "",
	},
	{
		"an answer ends an outage", machineFile,
		"a.outage = Outage{}\n\treturn NoteOutage", "return NoteOutage",
	},
	{
		"the margin is not relied on", "terms.go",
		"return ttl - min(t.Margin, ttl/2)", "return ttl",
	},
	{
		"the LockDelay is not relied on", "terms.go",
		"ttl -= min(max(ttl-t.TTL, 0), t.LockDelay)", "ttl += 0",
	},
}

// TestMutationsApply checks that the table fits the code.
func TestMutationsApply(t *testing.T) {
	t.Parallel()
	for _, m := range mutations {
		text, err := os.ReadFile(m.file)
		if err != nil {
			t.Fatal(err)
		}
		if n := strings.Count(string(text), m.from); n != 1 {
			t.Errorf("%s: %q is %d times in %s", m.rule, m.from, n, m.file)
		}
	}
}

// TestMutations compiles the package without one of its rules, for each rule, and
// runs the tests of the machine, which must fail: make mutate.
func TestMutations(t *testing.T) {
	if !*mutate {
		t.Skip("make mutate runs it: it compiles the package once for each rule")
	}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range mutations {
		t.Run(m.rule, func(t *testing.T) {
			text, err := os.ReadFile(m.file)
			if err != nil {
				t.Fatal(err)
			}
			dir := t.TempDir()
			mutant, overlay, binary := filepath.Join(dir, "mutant.go"), filepath.Join(dir, "overlay.json"), filepath.Join(dir, "mutant.test")
			replaced, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(here, m.file): mutant}})
			if err != nil {
				t.Fatal(err)
			}
			for file, data := range map[string][]byte{mutant: []byte(strings.Replace(string(text), m.from, m.to, 1)), overlay: replaced} {
				if err := os.WriteFile(file, data, 0o600); err != nil {
					t.Fatal(err)
				}
			}
			if out, err := exec.CommandContext(t.Context(), "go", "test", "-c", "-vet=off", "-overlay", overlay, "-o", binary, ".").CombinedOutput(); err != nil {
				t.Fatalf("without the rule the package does not compile: %v\n%s", err, out)
			}
			var caught []string
			for _, test := range []string{"TestTransitions", "TestModel"} {
				out, err := exec.CommandContext(t.Context(), binary, "-test.run", "^"+test+"$", "-test.timeout", "1m").CombinedOutput()
				if err != nil {
					caught = append(caught, test)
				}
				if testing.Verbose() {
					t.Logf("%s: %.300s", test, out)
				}
			}
			if caught == nil {
				t.Error("nothing notices that the rule is missing")
			}
			t.Log("noticed by", strings.Join(caught, ", "))
		})
	}
}
