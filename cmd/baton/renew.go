package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
)

func (a *app) renewCommand() *cobra.Command {
	k := &asking{}
	cmd := &cobra.Command{
		Use:   "renew [flags] [HANDLE]",
		Short: "Keep a lock that \"baton lock\" took",
		Long: `Renews the lease, so that it ends --ttl from now unless it is renewed again.

` + handleHelp + `
If the lease does not stand any more the exit code is 79: another process may hold
the lock, so stop what it protected.

` + exitTableHandle,
		Example: `  baton renew --ttl 60s - < handle-file
  BATON_HANDLE=… baton renew -o json`,
		Args: noMoreThanOne("HANDLE"),
	}
	cmd.Flags().DurationVar(&k.ttl, "ttl", baton.DefaultTTL, "how long the lock stays taken from now on")
	a.queryFlags(cmd)
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		k.ownTTL = cmd.Flags().Changed("ttl")
		if k.ttl <= 0 {
			return usage("--ttl %v: it is a duration above zero", k.ttl)
		}
		return a.withHandle(ctx, args, k, func(ctx context.Context, locks *baton.Locker, handle string) error {
			until, err := locks.Extend(ctx, handle)
			if err != nil || !asJSON {
				return err
			}
			return a.printHandle(handle, k.ttl, until)
		})
	})
	return cmd
}

const handleHelp = `The handle is an argument, or the first line of standard input if the argument is
"-", or the environment variable BATON_HANDLE if there is no argument. Arguments
can be seen by other users of the machine: prefer the other two.
`

// handleTimeout bounds how long the store may take to answer about a handle.
const handleTimeout = 10 * time.Second

// withHandle reads the handle from one of its three places, opens the store, and calls f.
func (a *app) withHandle(ctx context.Context, args []string, k *asking, f func(ctx context.Context, locks *baton.Locker, handle string) error) error {
	handle, err := a.handle(args)
	if err != nil {
		return err
	}
	if _, _, err := baton.ReadHandle(handle); err != nil {
		return badHandle(err)
	}
	locks, store, err := a.openWith(ctx, openWait{}, func() baton.Config { return baton.Config{TTL: k.ttl} }, k.checkTTL, outlives, movable)
	if err != nil {
		return err
	}
	defer shut(store)
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	return badHandle(f(ctx, locks, handle))
}

func badHandle(err error) error {
	if lost, ok := errors.AsType[*baton.LostError](err); ok && lost.Cause == baton.Gone {
		// The store keeps nothing of an ended lease, so nothing tells why it ended.
		return &exit{Code: exitLost, Err: fmt.Errorf("the lease on %q has ended: this handle was used to unlock before, or the lease has expired, or the lock was broken; another process may hold the lock: stop what it protected, or take it again by: baton lock %s",
			safe(lost.Key), shellWord(lost.Key))}
	}
	if errors.Is(err, baton.ErrHandle) {
		return usage("%s; it is what \"baton lock\" printed", strings.TrimPrefix(err.Error(), "baton: attach: "))
	}
	return err
}

func (a *app) handle(args []string) (string, error) {
	switch {
	case len(args) == 1 && args[0] == "":
		return "", usage("HANDLE is empty: it is what \"baton lock\" printed")
	case len(args) == 1 && args[0] != "-":
		return args[0], nil
	case len(args) == 1:
		in := bufio.NewScanner(a.stdin)
		if !in.Scan() {
			if err := in.Err(); err != nil {
				return "", fmt.Errorf("reading the handle: %w", err)
			}
			return "", usage("HANDLE is missing: standard input is empty")
		}
		return strings.TrimSpace(in.Text()), nil
	}
	handle := os.Getenv("BATON_HANDLE")
	if handle == "" {
		return "", usage("HANDLE is missing: give it as argument, by standard input and \"-\", or in BATON_HANDLE")
	}
	return handle, nil
}

// noMoreThanOne allows at most one argument of that name.
func noMoreThanOne(name string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) > 1 {
			return oneArg(name)(cmd, args)
		}
		return nil
	}
}
