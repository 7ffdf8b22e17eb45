package main

import (
	"bufio"
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

func (a *app) breakCommand() *cobra.Command {
	var yes bool
	var grants []string
	cmd := &cobra.Command{
		Use:   "break [flags] KEY",
		Short: "Take a lock away from its holders",
		Long: `Takes the lock from its holders, so that the next waiter gets it at once. The holders
usually notice at once, at their next renewal at the latest: until then they may go on
working. What the lock protects is safe from them only if it checks fencing tokens. A
holder that has crashed needs no breaking: its lock ends by itself.

On a terminal it asks first, and again if the holders have changed before the answer;
elsewhere --yes or --grant is needed. A lock that was granted since is left alone then;
with --yes alone it breaks what holds now.

` + exitTableBreak,
		Example: `  baton break order:42
  baton break --yes order:42`,
		Args:              oneArg("KEY"),
		ValidArgsFunction: a.completeKey,
	}
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.Flags().StringSliceVar(&grants, "grant", nil, "break only `GRANT`, as show -o json tells it, and do not ask; may be repeated")
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		key := args[0]
		interactive := term.IsTerminal(int(a.stdin.Fd())) && term.IsTerminal(int(a.stderr.Fd()))
		asks := !yes && len(grants) == 0
		if asks && !interactive {
			return usage("breaking a lock needs --yes where there is no terminal to ask on")
		}
		locks, store, err := a.open(ctx, baton.Config{}, outlives)
		if err != nil {
			return err
		}
		defer shut(store)
		info, err := locks.Inspect(ctx, key)
		if err != nil {
			return err
		}
		in := bufio.NewReader(a.stdin)
		for {
			if len(info.Holders) == 0 {
				a.say("%q is free: there is nothing to break", safe(key))
				return nil
			}
			if !asks {
				break
			}
			a.complain("%s", describe(heldBy(info)))
			fmt.Fprint(a.stderr, "baton: take it away, while its holder may be at work? [y/N] ")
			answer, _ := in.ReadString('\n')
			if answer = strings.ToLower(strings.TrimSpace(answer)); answer != "y" && answer != "yes" {
				return &exit{Code: exitNotAcquired, Err: fmt.Errorf("left %q alone", safe(key))}
			}
			// The user may have taken long to answer, and agreed to break these holders
			// only.
			asked := info.Holders
			grants = info.Grants()
			if info, err = locks.Inspect(ctx, key); err != nil {
				return err
			}
			if sameHolders(asked, info.Holders) {
				break
			}
			if len(info.Holders) > 0 {
				a.complain("its holders have changed meanwhile")
			}
		}
		switch ended, err := locks.Break(ctx, key, grants...); {
		case err != nil:
			return err
		case ended == 0:
			a.say("took %q from no holder: it was released before", safe(key))
		case ended == 1:
			a.say("took %q from 1 holder", safe(key))
		default:
			a.say("took %q from %d holders", safe(key), ended)
		}
		return nil
	})
	return cmd
}

// sameHolders reports whether two inspections saw the same grants. Some stores do not
// list them in order.
func sameHolders(before, now []driver.HolderInfo) bool {
	for _, n := range now {
		if !slices.ContainsFunc(before, n.SameGrant) {
			return false
		}
	}
	return len(before) == len(now)
}
