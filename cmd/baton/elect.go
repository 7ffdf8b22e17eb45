package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/election"
)

// electing are the flags of "baton elect".
type electing struct {
	running
	value string
}

func (a *app) electCommand() *cobra.Command {
	e := &electing{}
	cmd := &cobra.Command{
		Use:   "elect [flags] NAME -- COMMAND [ARG…]",
		Short: "Run a command on one machine at a time, as its leader",
		Long: `Stands for the election NAME and runs the command while this process leads. When
leadership is lost (the store is out of reach, the lock was broken) the command is
stopped before another process can be elected, and baton stands again, behind the
candidates that wait. When the command ends by itself, the next one is elected and baton
ends with the command's exit code. An election is the lock of the same name:
"baton show NAME" shows the leader and the queue, "baton watch --leader NAME" each change.

The command is started, stopped and signalled as by "baton run", and finds in its
environment

  BATON_KEY     the name of the election
  BATON_TOKEN   the fencing token: a number that rises with every leadership
  BATON_OWNER   what observers see: --value
  BATON_HELD    true

` + exitTableElect,
		Example: `  baton elect scheduler -- ./scheduler
  baton elect --value "$(hostname):8080" api -- ./api-server
  baton watch --leader api                                 who leads, as it changes`,
	}
	f := cmd.Flags()
	f.StringVar(&e.value, "value", "", "what observers see of the leader, such as its address (default: host:pid command)")
	f.DurationVarP(&e.wait, "wait", "w", 0, "how long to wait to be elected (default: no limit)")
	f.DurationVar(&e.ttl, "ttl", baton.DefaultTTL, "how long a crashed leader blocks the next election")
	f.DurationVarP(&e.grace, "grace", "k", 0, "time between TERM and KILL, at most a third of --ttl (default: 5s, or that third)")
	e.onAsk.flag(cmd)
	a.metricsFlag(cmd)

	cmd.Args = keyAndCommand("NAME")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return does(func(ctx context.Context, args []string) error {
			if err := a.measure(cmd); err != nil {
				return err
			}
			if err := e.check(cmd, args[0]); err != nil {
				return err
			}
			return a.elect(ctx, args[0], args[1:], e)
		})(cmd, args)
	}
	cmd.ValidArgsFunction = a.completeRun
	return cmd
}

// elect stands for election, and runs the command as the leader until the command ends.
func (a *app) elect(ctx context.Context, name string, command []string, e *electing) error {
	path, err := find(command[0])
	if err != nil {
		return err
	}
	owner := e.value
	if owner == "" {
		owner = check.Owner(os.Getpid(), command[0])
	}
	locks, store, err := a.openWith(ctx, e.openWait(), func() baton.Config { return e.config(owner) }, e.checkTTL, func(t driver.Traits) error { return checkShown("--value", name, owner, t) })
	if err != nil {
		return err
	}
	defer shut(store)
	if !store.Traits().Processes {
		a.complain("store %s is not shared with other processes: no other process can be elected", store.Traits().Store)
	}
	sigs, stop := listenForCommand()
	defer stop()
	for {
		lease, err := a.stand(locks, name, owner, e, sigs)
		if err != nil {
			return err
		}
		a.say("elected with token %d", lease.Token())
		over := a.lead(store.Traits().Store, name, lease)
		end := a.hold(lease, &e.running, a.under(lease, path, command, owner), sigs)
		a.release(lease, &end)
		over()
		switch own := end.own || end.lost == nil; {
		case own && (end.err != nil || end.code != 0):
			return &exit{Code: end.code, Err: end.err}
		case own:
			return nil
		case end.last:
			return &exit{Code: exitLost, Err: nil}
		}
		a.say("standing for election again")
	}
}

// stand waits until this process is elected. It continues while the store is out of
// reach, which may be the reason why leadership was lost.
func (a *app) stand(locks *baton.Locker, name, owner string, e *electing, sigs <-chan os.Signal) (*baton.Lease, error) {
	until := time.Now().Add(e.left)
	for k := e.asking; ; {
		lease, err := a.acquire(locks, name, owner, &k, sigs)
		if codeOf(err) != exitUnavailable {
			return lease, err
		}
		if k.left = time.Until(until); k.waits && k.left <= 0 {
			return nil, err
		}
		a.unelected(locks.Traits().Store, name, err)
		a.complain("%s; trying again", explain(err))
	}
}

// checkShown refuses a text that the store cannot show as the owner of a lock. what is
// the flag or argument of the text.
func checkShown(what, key, text string, t driver.Traits) error {
	claim := driver.Claim{Key: key, ID: "-", Owner: text, Weight: driver.Whole, Capacity: driver.Whole}
	err := check.Request(driver.Request{Claim: claim, TTL: max(time.Minute, t.MinTTL)}, t)
	if bad, ok := errors.AsType[*driver.RequestError](err); ok && bad.Field == "owner" {
		return usage("%s: %s", what, bad.Reason)
	}
	return nil
}

// watchLeader prints the leaders of name as they change.
func (a *app) watchLeader(ctx context.Context, name string, asJSON bool) error {
	if err := check.Key(name); err != nil {
		return usage("%w", err)
	}
	return a.lookOn(ctx, func(ctx context.Context, locks *baton.Locker) error {
		failing, first := false, true
		for term, err := range election.Observe(ctx, locks, name) {
			switch {
			case err != nil && (first || errors.Is(err, baton.ErrUnsupported)):
				return err
			case err != nil:
				// A fail-over ends by itself, and an observer wants to see that as well.
				a.complain("%s; still watching", explain(err))
				failing = true
				continue
			case failing:
				a.say("the store answers again")
				failing = false
			}
			first = false
			if err := a.printTerm(name, term, asJSON); err != nil {
				return err
			}
		}
		return nil
	})
}

// termView is a change of leader in JSON.
type termView struct {
	Time      time.Time `json:"time"`
	Name      string    `json:"name"`
	Led       bool      `json:"led"`
	Value     string    `json:"value,omitempty"`
	Token     string    `json:"token,omitempty"`
	Age       *float64  `json:"age,omitempty"`
	Remaining *float64  `json:"remaining,omitempty"`
}

func (a *app) printTerm(name string, term election.Term, asJSON bool) error {
	now := time.Now()
	if asJSON {
		v := termView{Time: now.Round(time.Millisecond).UTC(), Name: name, Led: term.Led, Value: term.Value}
		if term.Token != 0 {
			v.Token = strconv.FormatInt(term.Token, 10)
		}
		if term.Led {
			left := seconds(term.Remaining)
			v.Remaining = &left
		}
		if term.Led && term.Age >= 0 {
			age := seconds(term.Age)
			v.Age = &age
		}
		return printJSON(a.stdout, v, false)
	}
	text := "nobody leads"
	if term.Led {
		text = ownerLabel(term.Value, false) + " leads"
		if term.Token != 0 {
			text += fmt.Sprintf(", token %d", term.Token)
		}
	}
	_, err := fmt.Fprintf(a.stdout, "%s %s\n", now.Format("15:04:05.000"), text)
	return err
}
