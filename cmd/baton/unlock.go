package main

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
)

func (a *app) unlockCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "unlock [HANDLE]",
		Short: "Give back a lock that \"baton lock\" took",
		Long: `Gives the lock back.

` + handleHelp + `
If the lease did not stand any more the exit code is 79: another process may have
held the lock meanwhile.

` + exitTable,
		Example: `  baton unlock "$HANDLE"
  baton unlock - < handle-file`,
		Args: noMoreThanOne("HANDLE"),
		RunE: does(func(ctx context.Context, args []string) error {
			return a.withHandle(ctx, args, &asking{ttl: baton.DefaultTTL}, func(ctx context.Context, locks *baton.Locker, handle string) error {
				lease, err := locks.Attach(ctx, handle)
				if err != nil {
					return err
				}
				return lease.Unlock()
			})
		}),
	}
}
