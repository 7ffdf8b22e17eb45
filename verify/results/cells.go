package results

import (
	"fmt"
	"slices"
	"strings"

	"github.com/batonhq/baton/verify"
	"github.com/batonhq/baton/verify/check"
	"github.com/batonhq/baton/verify/deploy"
	"github.com/batonhq/baton/verify/fault"
)

// A Cell is what is known of a kind of store under a fault.
type Cell struct {
	Kind, Fault string
	Claim       fault.Verdict
	Claimed     bool
	Runs        int                   // with a verdict
	Broke       map[check.Promise]int // in how many of them
	Texts       []string
	Skipped     string
}

// Cells returns all there are, by kind and fault.
func Cells(all []Result) map[[2]string]*Cell {
	table := make(map[[2]string]*Cell)
	for _, k := range deploy.Kinds {
		for _, f := range fault.All() {
			c := &Cell{Kind: k.Name, Fault: f.ID, Broke: make(map[check.Promise]int)}
			c.Claim, c.Claimed = fault.Expect(k.Name, f.ID)
			table[[2]string{k.Name, f.ID}] = c
		}
	}
	for _, r := range all {
		c := table[[2]string{r.Kind, r.Fault}]
		if c == nil {
			continue // of a kind or a fault that is no more
		}
		switch r.Verdict {
		case verify.Skipped:
			c.Skipped = strings.Join(r.Why, "; ")
		case verify.Held, verify.Excused, verify.Broken:
			c.Runs++
			for p, kept := range r.Kept {
				if !kept {
					c.Broke[p]++
				}
			}
			c.Texts = append(c.Texts, r.Broke...)
		}
	}
	return table
}

// String is the cell in the table: what is claimed, in how many runs it was
// looked at, and what was seen to break in how many of them.
func (c *Cell) String() string {
	switch {
	case !c.Claimed || c.Claim.E == fault.NoSuch:
		return "·"
	case c.Runs == 0 && (c.Skipped != "" || fault.WhyLeft(c.Kind, c.Fault) != ""):
		return c.Claim.String() + " not run"
	case c.Runs == 0:
		return c.Claim.String() + " –"
	}
	s := fmt.Sprintf("%s %d", c.Claim, c.Runs)
	for _, p := range verify.Promises {
		if n := c.Broke[p]; n > 0 {
			s += fmt.Sprintf(", %s broke in %d", p, n)
		}
	}
	if len(c.Wrong()) > 0 {
		s = "**" + s + "**"
	}
	return s
}

// Wrong returns the promises that must hold and did not.
func (c *Cell) Wrong() (found []check.Promise) {
	for _, p := range verify.Promises {
		if c.Claim.Of(p) == fault.Holds && c.Broke[p] > 0 {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}

// Spared returns the promises of a lock that may break and were never seen to.
func (c *Cell) Spared() (found []check.Promise) {
	for _, p := range verify.Promises {
		if p != check.Bounded && c.Claim.Of(p) == fault.Breaks && c.Runs > 0 && c.Broke[p] == 0 {
			found = append(found, p)
		}
	}
	slices.Sort(found)
	return found
}

// WrongIn is Wrong, of one run.
func (c *Cell) WrongIn(r Result) []check.Promise {
	one := *c
	one.Broke = make(map[check.Promise]int)
	for p, kept := range r.Kept {
		if !kept {
			one.Broke[p]++
		}
	}
	return one.Wrong()
}
