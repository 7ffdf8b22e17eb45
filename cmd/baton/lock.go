package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

func (a *app) lockCommand() *cobra.Command {
	k := &asking{}
	cmd := &cobra.Command{
		Use:   "lock [flags] KEY",
		Short: "Take a lock and print a handle for it",
		Long: `Takes the lock and prints a handle. Nothing renews the lease: it ends after --ttl
unless "baton renew" is called before. Where a command can be wrapped, "baton run"
is the safer choice.

Every user who has the handle can renew and unlock: treat it as a password.
With -o json: handle, key, token (a string), ttl in seconds, and when it expires.

` + exitTableLock,
		Example: `  BATON_HANDLE=$(baton lock --ttl 60s -w 10s deploy/web) || exit
  export BATON_HANDLE
  ./step-one && baton renew --ttl 60s && ./step-two
  baton unlock`,
		Args:              oneArg("KEY"),
		ValidArgsFunction: a.completeKey,
	}
	k.flags(cmd)
	a.queryFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return does(func(ctx context.Context, args []string) error {
			asJSON, err := a.json()
			if err != nil {
				return err
			}
			if err := k.check(cmd, args[0]); err != nil {
				return err
			}
			// The calling process is the one that uses the lock afterwards.
			owner := check.Owner(os.Getppid(), programOf(os.Getppid()))
			locks, store, err := a.openWith(ctx, k.openWait(), func() baton.Config { return baton.Config{TTL: k.ttl, Owner: owner} }, k.checkTTL, outlives, movable)
			if err != nil {
				return err
			}
			defer shut(store)
			sigs, stop := listen(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
			defer stop()
			// If the reader of the output ends, this process must release the lock first.
			_, stopPipe := listen(syscall.SIGPIPE)
			defer stopPipe()
			lease, err := a.acquire(locks, args[0], owner, k, sigs)
			if err != nil {
				return err
			}
			select {
			case s := <-sigs: // it arrived together with the lock
				_ = lease.Unlock()
				return interrupted(s)
			default:
			}
			// The store began to count before now. The lease's own end, without the
			// margin, is early enough.
			until := lease.Deadline()
			handle, err := lease.Detach()
			if err != nil {
				return err
			}
			written := make(chan error, 1)
			go func() {
				if asJSON {
					written <- a.printHandle(handle, k.ttl, until)
					return
				}
				_, err := fmt.Fprintln(a.stdout, handle)
				written <- err
			}()
			select {
			case err = <-written:
				if err != nil {
					err = fmt.Errorf("the handle could not be written: %w", err)
				}
			case s := <-sigs: // the write may block for ever
				err = interrupted(s)
			}
			if err == nil {
				return nil
			}
			return takeBack(ctx, locks, handle, err)
		})(cmd, args)
	}
	return cmd
}

// programOf is the name of a process's program, or "" if it is unknown.
func programOf(pid int) string {
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}

// takeBack releases a lock whose handle could not be printed, because of why.
func takeBack(ctx context.Context, locks *baton.Locker, handle string, why error) error {
	ctx, cancel := context.WithTimeout(ctx, handleTimeout)
	defer cancel()
	lease, err := locks.Attach(ctx, handle)
	if err == nil {
		err = lease.Unlock()
	}
	if err != nil && !errors.Is(err, baton.ErrLost) {
		return &exit{Code: codeOf(why), Err: fmt.Errorf("%w; and the lock could not be given back, it ends with its --ttl: %s", why, explain(err))}
	}
	return why
}

// outlives refuses stores whose locks end with this process.
func outlives(traits driver.Traits) error {
	if traits.Processes {
		return nil
	}
	return &exit{Code: exitConfig, Err: fmt.Errorf("store %s lives in this process only: there is nothing to share; name another with --store or BATON_STORE", traits.Store)}
}

// movable refuses stores where another process cannot take over a lock.
func movable(traits driver.Traits) error {
	if !traits.Sessions {
		return nil
	}
	return &exit{Code: exitConfig, Err: fmt.Errorf("store %s ties a lock to the process that takes it, which ends before it could be used: use baton run", traits.Store)}
}

// printHandle prints a handle and the facts about its lease.
func (a *app) printHandle(handle string, ttl time.Duration, until time.Time) error {
	key, token, err := baton.ReadHandle(handle)
	if err != nil {
		return err
	}
	return printJSON(a.stdout, struct {
		Handle  string    `json:"handle"`
		Key     string    `json:"key"`
		Token   string    `json:"token"`
		TTL     float64   `json:"ttl"`
		Expires time.Time `json:"expires"`
	}{handle, key, strconv.FormatInt(token, 10), seconds(ttl), until.Round(time.Millisecond).UTC()}, false)
}
