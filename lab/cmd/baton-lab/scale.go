package main

import (
	"context"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/lab/scale"
)

func (a *app) scaleCommand() *cobra.Command {
	var cfg scale.Config
	cmd := &cobra.Command{
		Use:   "scale [flags]",
		Short: "Measure how cost grows with leases, processes and waiters",
		Long: `Measures on every store what a lease, a process, a waiter, an acquisition and a decision
cost, as there are more and more of them: requests, time, memory. Servers are started for
it on this machine, and have to be installed.

Without --quick it takes hours on a machine that has nothing else to do, and writes
lab/results/scale.json and lab/results/scale.md of a clone of Baton's repository. It needs Linux.`,
		Example: `  baton-lab scale --quick
  baton-lab scale --root . --only Redis,etcd`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.BoolVar(&cfg.Quick, "quick", false, "measure little, for some seconds, and print the figures as JSON")
	f.StringVar(&cfg.Only, "only", "", "measure only these `STORES`, with commas between them, and keep the figures of the others")
	f.BoolVar(&cfg.Render, "render", false, "measure nothing: make the page again")
	f.StringVar(&cfg.Root, "root", ".", "the `DIRECTORY` of the clone")
	cmd.RunE = cli.Does(func(ctx context.Context, _ []string) error {
		ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT, syscall.SIGTERM)
		defer stop()
		return scale.Run(ctx, cfg)
	})
	return cmd
}
