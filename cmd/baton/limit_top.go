package main

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/driver/limits"
)

// mostTop bounds the memory of baton limit top.
const mostTop = 10_000

func (a *app) limitTopCommand() *cobra.Command {
	var n int
	var of int64
	var share bool
	cmd := &cobra.Command{
		Use:   "top [flags] [PREFIX]",
		Short: "Show the keys that use most of their limits",
		Long: `Reads what the store keeps of limits, of all keys or of those that begin with the
prefix, and shows those that use most. "baton limit ls --help" says what USED and OF
are, and what a store can tell.

By default "most" is the highest number. With --share it is the highest share of what a
key may use, and keys that do not tell how much that is are left out: windows do not.
With --of N they may use N, as the program's limit says, which you know.

` + keysInStore + `

With -o json: an array of what "baton limit ls" prints, the most first, with share.

` + exitTable,
		Example: `  baton limit top
  baton limit top --of 100 minute/       the limit "minute" is 100 per minute
  baton limit top --share -n 3 tokens/   buckets tell their burst`,
		ValidArgsFunction: cobra.NoFileCompletions,
	}
	cmd.Flags().IntVarP(&n, "limit", "n", 10, fmt.Sprintf("how many keys to show, at most %d", mostTop))
	cmd.Flags().BoolVar(&share, "share", false, "sort by the share of the limit that is used")
	cmd.Flags().Int64Var(&of, "of", 0, "assume the limit `N` for keys whose limit is not known; implies --share")
	a.queryFlags(cmd)
	cmd.Args = noLimit("PREFIX")
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if n < 1 || n > mostTop {
			return usage("--limit %d: it is a number from 1 to %d", n, mostTop)
		}
		if of < 1 && cmd.Flags().Changed("of") {
			return usage("--of %d: it is a number above zero", of)
		}
		t := &topStates{n: n, of: of, share: share || of > 0}
		if err := a.eachState(ctx, args, "", t.add); err != nil {
			return err
		}
		all := t.sorted()
		if asJSON {
			views := make([]stateView, 0, len(all))
			for _, st := range all {
				v := viewOf(st)
				if s, ok := shareOf(st); ok {
					s = math.Round(s*1000) / 1000
					v.Share = &s
				}
				views = append(views, v)
			}
			return printJSON(a.stdout, views, true)
		}
		if len(all) > 0 {
			if err := table(a.stdout, t.rows(all)); err != nil {
				return err
			}
		}
		switch {
		case t.seen == 0:
			a.say("no limits are in use%s", under(args))
		case t.untold > 0:
			a.complain("%d of %d keys are left out, as they do not tell how much they may use: --of N says it", t.untold, t.seen)
		case t.seen > len(all):
			a.say("%d keys are in use%s", t.seen, under(args))
		}
		return nil
	})
	return cmd
}

// topStates keeps the states with the highest use.
type topStates struct {
	n     int
	of    int64 // of states that do not tell it; 0 if that is not known
	share bool  // the highest share, not the highest number

	all          []limits.State
	seen, untold int
}

func (t *topStates) add(st limits.State) bool {
	t.seen++
	if st.Of == 0 {
		st.Of = t.of
	}
	if _, ok := shareOf(st); t.share && !ok {
		t.untold++
		return true
	}
	if t.all = append(t.all, st); len(t.all) >= 2*t.n {
		t.all = t.sorted()
	}
	return true
}

// sorted are the highest n, the highest first.
func (t *topStates) sorted() []limits.State {
	slices.SortFunc(t.all, func(x, y limits.State) int {
		order := cmp.Compare(y.Used, x.Used)
		if t.share {
			one, _ := shareOf(x)
			two, _ := shareOf(y)
			order = cmp.Or(cmp.Compare(two, one), order)
		}
		return cmp.Or(order, strings.Compare(x.Key, y.Key))
	})
	return t.all[:min(t.n, len(t.all))]
}

// shareOf is how much of what a key may use is used. ok is false if that is not known.
func shareOf(st limits.State) (share float64, ok bool) {
	if st.Of == 0 || st.Kind == limits.Unknown {
		return 0, false
	}
	return float64(st.Used) / float64(st.Of), true
}

// barWidth is how many columns the longest bar takes.
const barWidth = 20

// rows make the table. A bar is as long as the share, or else beside the highest number.
func (t *topStates) rows(all []limits.State) [][]string {
	rows := [][]string{{"KEY", "KIND", "USED", "OF", "FRESH IN", "USE"}}
	for _, st := range all {
		part := float64(st.Used) / float64(max(all[0].Used, 1))
		if t.share {
			part, _ = shareOf(st)
		}
		n := int(math.Ceil(min(part, 1) * barWidth))
		bar := strings.Repeat("█", n)
		if s, ok := shareOf(st); ok {
			bar += strings.Repeat(" ", barWidth-n) + fmt.Sprintf(" %3.0f%%", math.Floor(100*s))
		}
		rows = append(rows, append(stateRow(st), bar))
	}
	return rows
}
