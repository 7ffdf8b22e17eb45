package guarantees

import (
	"fmt"
	"slices"
	"strings"

	"github.com/batonhq/baton/internal/verify/check"
	"github.com/batonhq/baton/internal/verify/deploy"
	"github.com/batonhq/baton/internal/verify/fault"
	"github.com/batonhq/baton/internal/verify/results"
)

// owed is how a promise fared where it must hold.
type owed struct{ runs, broken int }

func (o owed) String() string {
	switch {
	case o.runs == 0:
		return none
	case o.broken == 0:
		return fmt.Sprintf("held in %d", o.runs)
	default:
		return fmt.Sprintf("**broke in %d of %d**", o.broken, o.runs)
	}
}

// seen is a table of what the verification saw: how often each promise held
// where it must, and where it was seen to break as the sections on the stores
// say that it may.
func seen(all results.Sums) string {
	cells := results.Cells(all)
	var b strings.Builder
	b.WriteString("| servers | runs | locks granted | writes checked | exclusive belief | fencing | liveness | exclusive belief broke, as it may, under |\n|---|---|---|---|---|---|---|---|\n")
	for _, k := range deploy.Kinds {
		var runs, granted, writes int
		promises := make(map[check.Promise]owed)
		var broke []string
		for _, f := range fault.All() {
			c := cells[[2]string{k.Name, f.ID}]
			runs, granted, writes = runs+c.Runs(), granted+c.Granted, writes+c.Writes
			for _, p := range []check.Promise{check.Exclusive, check.Fenced, check.Lively} {
				o := promises[p]
				switch {
				case c.Claim.Of(p) == fault.Holds:
					o.runs += c.Looked[p]
					o.broken += c.BrokeIn(p)
				case p == check.Exclusive && c.BrokeIn(p) > 0:
					broke = append(broke, f.Name)
				}
				promises[p] = o
			}
		}
		slices.Sort(broke)
		under := strings.Join(broke, ", ")
		if under == "" {
			under = none
		}
		fmt.Fprintf(&b, "| %s | %d | %d | %d | %s | %s | %s | %s |\n", k.Name, runs, granted, writes,
			promises[check.Exclusive], promises[check.Fenced], promises[check.Lively], under)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
