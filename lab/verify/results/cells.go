package results

import (
	"fmt"
	"slices"

	"github.com/batonhq/baton/lab/verify"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/fault"
)

// A Cell has the results and the claim of a kind of store under a fault.
type Cell struct {
	Sum
	Claim   fault.Verdict
	Claimed bool
}

// Cells returns all cells, by kind and fault. It leaves out kinds and faults that no longer exist.
func Cells(all Sums) map[[2]string]*Cell {
	table := make(map[[2]string]*Cell)
	for _, k := range deploy.Kinds {
		for _, f := range fault.All() {
			key := [2]string{k.Name, f.ID}
			c := &Cell{Sum: Sum{Kind: k.Name, Fault: f.ID}}
			if s := all[key]; s != nil {
				c.Sum = *s
			}
			c.Claim, c.Claimed = fault.Expect(k.Name, f.ID)
			table[key] = c
		}
	}
	return table
}

// Runs is the number of runs with a verdict.
func (c *Cell) Runs() int { return len(c.Seeds) }

// String is the cell in the table: the claim, the number of checked runs, and the promises that broke,
// with the number of runs.
func (c *Cell) String() string {
	switch {
	case !c.Claimed || c.Claim.E == fault.NoSuch:
		return "·"
	case c.Runs() == 0 && (c.Why != "" || fault.WhyLeft(c.Kind, c.Fault) != ""):
		return c.Claim.String() + " not run"
	case c.Runs() == 0:
		return c.Claim.String() + " –"
	}
	s := fmt.Sprintf("%s %d", c.Claim, c.Runs())
	for _, p := range verify.Promises {
		if n := c.BrokeIn(p); n > 0 {
			s += fmt.Sprintf(", %s broke in %d", p, n)
		}
	}
	if len(c.Wrong()) > 0 {
		s = "**" + s + "**"
	}
	return s
}

// Wrong returns the promises that must hold and broke.
func (c *Cell) Wrong() (found []check.Promise) {
	for _, p := range verify.Promises {
		if c.Claim.Of(p) == fault.Holds && c.BrokeIn(p) > 0 {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}

// Spared returns the promises of a lock that may break and were never seen to break.
func (c *Cell) Spared() (found []check.Promise) {
	for _, p := range verify.Promises {
		if p != check.Bounded && c.Claim.Of(p) == fault.Breaks && c.Runs() > 0 && c.BrokeIn(p) == 0 {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}
