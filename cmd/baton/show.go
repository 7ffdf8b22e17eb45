package main

import (
	"context"
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

func (a *app) showCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "show [flags] KEY",
		Short: "Show who holds a lock and who waits for it",
		Long: `Shows the holders of a lock and the queue, in order. A lock without holders is
shown as free; the exit code is 0 all the same.

With -o json: key, holders and waiters, each with owner and mode; holders with
token (a string), age and remaining (seconds). Unknown values are left out. For @ask/KEY,
where requests to release KEY stand ("baton ask"), asks_for is KEY, and the owners are
the reasons.

The lock of "baton once KEY" is once/KEY. "-" and "?" are what the store does not keep: etcd
no ages, Redlock no tokens.

` + exitTable,
		Example: `  baton show order:42
  baton show -o json order:42 | jq -r '.holders[0].owner'`,
		Args:              oneArg("KEY"),
		ValidArgsFunction: a.completeKey,
	}
	a.queryFlags(cmd)
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		locks, store, err := a.open(ctx, baton.Config{}, outlives)
		if err != nil {
			return err
		}
		defer shut(store)
		info, err := locks.Inspect(ctx, args[0])
		if err != nil {
			return err
		}
		info.Key = args[0]
		if asJSON {
			return printJSON(a.stdout, view(info), true)
		}
		if len(info.Holders)+len(info.Waiters) == 0 {
			text := "lock %q is free\n"
			if asksFor(args[0]) != "" {
				text = "no request stands: %q is free\n"
			}
			_, err := fmt.Fprintf(a.stdout, text, safe(args[0]))
			return err
		}
		return table(a.stdout, places(info))
	})
	return cmd
}

func places(info driver.KeyInfo) [][]string {
	rows, held := [][]string{{"", "OWNER", "MODE", "SINCE", "EXPIRES IN", "TOKEN"}}, "held"
	if asksFor(info.Key) != "" {
		rows[0][1], held = "REASON", "asks"
	}
	for _, h := range info.Holders {
		t := token(h)
		if t == "" {
			t = "-"
		}
		rows = append(rows, []string{held, ownerLabel(h.Owner, h.Foreign), mode(h), short(h.Age), short(h.Remaining), t})
	}
	for i, w := range info.Waiters {
		rows = append(rows, []string{strconv.Itoa(i + 1), ownerLabel(w.Owner, false), mode(w), short(w.Age), "-", "-"})
	}
	return rows
}
