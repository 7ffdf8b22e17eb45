package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/supervise"
)

const exitTableAsk = `Exit codes:
  0         all that held the lock have released it, or none did
  64        wrong usage
  69        the store cannot be reached
  75        --wait is over and the lock is still held, or the store keeps one request at a
            time and another one stands
  78        wrong configuration: store URL, password, or something the store cannot do
  79        the request was lost: the store was out of reach, or it was broken
  125       baton itself failed
  128+n     signal n came while waiting
`

// asks are the flags of "baton ask".
type asks struct {
	wait    time.Duration
	limited bool // after check: --wait was given
}

func (a *app) askCommand() *cobra.Command {
	f := &asks{}
	cmd := &cobra.Command{
		Use:   "ask [flags] KEY REASON",
		Short: "Ask the holders of a lock to release it, and wait until they have",
		Long: `Asks the processes that hold a lock to release it, says why, and waits until each of
them has, or no longer than --wait. It does not take the lock: a process that waits for
it gets it. If the lock is free it does nothing.

A request is polite: holders decide. "baton run" and "baton elect" print it, and tell
their command by a signal if they have --on-ask; programs with the library look at
Lease.Asked. They learn of it within a third of their TTL. Others never do: the user of
a handle from "baton lock", and holders that are not Baton. "baton break" needs no
consent.

The request stands while this command runs, as a lock of its own: @ask/KEY, with the
reason as the owner. "baton ls @ask/" lists all requests. A process that takes the lock
meanwhile may be asked, too.

With -o json: key, reason, released (true or false), waited (seconds), and asked: the
holders at the start, as "baton show" prints them.

` + exitTableAsk,
		Example: `  baton ask nightly "deploy 7"
  baton ask -w 2m nightly "deploy 7" || baton break --yes nightly
  baton run --on-ask TERM nightly -- ./nightly.sh       a command that ends when asked`,
		Args: func(_ *cobra.Command, args []string) error {
			switch {
			case len(args) < 2:
				return usage("%s is missing", []string{"KEY", "REASON"}[len(args)])
			case len(args) > 2:
				return usage("one REASON is enough: what is %q? Write a reason of several words in quotes", safe(args[2]))
			}
			return nil
		},
		ValidArgsFunction: a.completeKey,
	}
	cmd.Flags().DurationVarP(&f.wait, "wait", "w", 0, "how long to wait (default: no limit)")
	a.queryFlags(cmd)
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if f.limited = cmd.Flags().Changed("wait"); f.limited && f.wait <= 0 {
			return usage("--wait %v: it is a duration above zero", f.wait)
		}
		if err := check.Prefixed(baton.AskPrefix, args[0], "a request to release it"); err != nil {
			return usage("%w", err)
		}
		if args[1] == "" {
			return usage("REASON is empty: holders read it")
		}
		return a.ask(ctx, args[0], args[1], f, asJSON)
	})
	return cmd
}

// askedView is the result of "baton ask" in JSON.
type askedView struct {
	Key      string       `json:"key"`
	Reason   string       `json:"reason"`
	Released bool         `json:"released"`
	Waited   float64      `json:"waited"`
	Asked    []holderView `json:"asked"`
}

func (a *app) ask(ctx context.Context, key, reason string, f *asks, asJSON bool) error {
	sigs, stop := listen(syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT)
	defer stop()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	go func() {
		select {
		case s := <-sigs:
			cancel(interruptedIn(s, "took the request back"))
		case <-ctx.Done():
		}
	}()
	locks, store, err := a.open(ctx, baton.Config{}, outlives, func(t driver.Traits) error { return checkShown("REASON", key, reason, t) })
	if err != nil {
		return orSignal(ctx, err)
	}
	defer shut(store)

	began := time.Now()
	waiting := ctx
	if f.limited {
		var end context.CancelFunc
		waiting, end = context.WithTimeout(ctx, f.wait)
		defer end()
	}
	info, err := locks.Inspect(waiting, key)
	if err != nil {
		return orSignal(ctx, err)
	}
	if len(info.Holders) == 0 {
		a.say("%q is free: there is no holder to ask", safe(key))
	} else {
		lease, asking := locks.Ask(waiting, key, reason)
		if asking != nil {
			if held, ok := errors.AsType[*baton.HeldError](asking); ok {
				return &exit{Code: exitNotAcquired, Err: fmt.Errorf("another request stands: %s", describe(held))}
			}
			return orSignal(ctx, asking)
		}
		who := inTheWay(heldBy(info))
		if more := len(info.Holders) - 1; more > 0 {
			who += fmt.Sprintf(", and by %d more", more)
		}
		a.say("asked for %q: %s", safe(key), who)
		err = a.awaitRelease(lease.Context(waiting), locks, key, info.Holders)
		switch lost := lease.Err(); {
		case err == nil:
		case context.Cause(ctx) != nil:
			err = context.Cause(ctx)
		case lost != nil:
			err = fmt.Errorf("the request is gone: %w", lost)
		default:
			err = &exit{Code: exitNotAcquired, Err: fmt.Errorf("not released in %s: %w", short(time.Since(began)), err)}
		}
		_ = lease.Unlock() // a request that cannot be taken back ends with its TTL
	}
	if asJSON {
		v := askedView{key, reason, err == nil, seconds(time.Since(began)), view(info).Holders}
		if failed := printJSON(a.stdout, v, true); failed != nil {
			return failed
		}
	}
	if err == nil && len(info.Holders) > 0 {
		a.say("%q was released", safe(key))
	}
	return err
}

// orSignal returns the signal that ended ctx, if one did, and else err.
func orSignal(ctx context.Context, err error) error {
	if by := context.Cause(ctx); by != nil {
		return by
	}
	return err
}

// lookForRelease is how often "baton ask" looks whether the lock was released.
const lookForRelease = 500 * time.Millisecond

// awaitRelease returns when none of the holders holds the lock. If ctx ends first, its
// error names one that still does.
func (a *app) awaitRelease(ctx context.Context, locks *baton.Locker, key string, holders []driver.HolderInfo) error {
	look := time.NewTicker(lookForRelease)
	defer look.Stop()
	last := driver.KeyInfo{Key: key, Holders: holders}
	failed := false
	for {
		info, err := locks.Inspect(ctx, key)
		switch {
		case err == nil:
			if failed {
				a.say("the store answers again")
			}
			failed, last.Holders = false, slices.DeleteFunc(info.Holders, func(h driver.HolderInfo) bool {
				return !slices.ContainsFunc(last.Holders, h.SameGrant)
			})
			if len(last.Holders) == 0 {
				return nil
			}
		case ctx.Err() == nil && !failed:
			failed = true
			a.complain("%s; still waiting", explain(err))
		}
		select {
		case <-look.C:
		case <-ctx.Done():
			return errors.New(describe(heldBy(last)))
		}
	}
}

// onAsk is the value of --on-ask: 0, or a signal for the command.
type onAsk syscall.Signal

// askSignals returns the names that --on-ask accepts: the signals that are passed on.
func askSignals() (names []string) {
	for _, of := range supervise.Ending {
		names = append(names, of.Name)
	}
	return names
}

func (s *onAsk) flag(cmd *cobra.Command) {
	names := askSignals()
	last := len(names) - 1
	cmd.Flags().Var(s, "on-ask", "`SIGNAL` to send to the command when it is asked to release the lock (baton ask): "+strings.Join(names[:last], ", ")+" or "+names[last]+" (default: only print the request)")
	_ = cmd.RegisterFlagCompletionFunc("on-ask", cobra.FixedCompletions(names, cobra.ShellCompDirectiveNoFileComp))
}

func (s *onAsk) String() string {
	for _, of := range supervise.Ending {
		if of.Signal == syscall.Signal(*s) {
			return of.Name
		}
	}
	return ""
}

func (s *onAsk) Type() string { return "signal" }

func (s *onAsk) Set(text string) error {
	name := strings.TrimPrefix(strings.ToUpper(text), "SIG")
	for _, of := range supervise.Ending {
		if of.Name == name {
			*s = onAsk(of.Signal)
			return nil
		}
	}
	return fmt.Errorf("it is one of %s", strings.Join(askSignals(), ", "))
}

// heed does what --on-ask says after a request to release the lock. It does not wait
// until the request is printed: a pipe may be full, and this process must see the loss of
// the lease.
func (a *app) heed(lease *baton.Lease, reason string, s onAsk, child *supervise.Child) {
	told := ""
	if s != 0 {
		child.Signal(syscall.Signal(s))
		told = fmt.Sprintf("; sent %s to the command", s.String())
	}
	go a.say("asked to release %q: %q%s", safe(lease.Key()), safe(reason), told)
}
