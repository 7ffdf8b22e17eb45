package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/bootclock"
	"github.com/batonhq/baton/internal/supervise"
)

// running are the flags of "baton run" besides those of the lock.
type running struct {
	asking
	maxHold  time.Duration
	minHold  time.Duration
	grace    time.Duration
	ownGrace bool // --grace was given
	conflict int
	onAsk    onAsk
}

// standardGrace is how long a command may take to end after TERM. A short TTL shortens
// it.
const standardGrace = 5 * time.Second

func (a *app) runCommand() *cobra.Command {
	r := &running{}
	cmd := &cobra.Command{
		Use:   "run [flags] KEY -- COMMAND [ARG…]",
		Short: "Run a command while holding a lock",
		Long: `Waits for the lock, runs the command, and gives the lock back when the command
has ended. There is no shell in between; standard input is passed on, and so are
the signals INT, TERM, HUP, QUIT, USR1, USR2 and WINCH. On a terminal, Ctrl-C ends
the command and the script around baton, as it would without baton.

The command finds in its environment

  BATON_KEY     the name of the lock
  BATON_TOKEN   the fencing token: a number that rises with every grant of the key;
                pass it to what the lock protects, so that it can refuse a lower one
  BATON_OWNER   the name of the holder that baton show gives
  BATON_HELD    true

and the rest of baton's own environment. That includes BATON_STORE, with a password in its
URL: to hide it, run "env -u BATON_STORE COMMAND", or use password-file= in the URL. The
value of --store is not passed on.

If the lease is lost (the store is out of reach, the lock was broken), the
command is stopped: its whole process group gets TERM, and KILL after the grace.
All of that ends before the store can grant an expired lock to another process.
Processes that the command leaves in its group when it ends are stopped too,
before the lock is given back. On Linux so are those in other groups of the session,
as "timeout" makes them, but not daemons (elsewhere use "timeout --foreground"). The
lock is kept while a process remains that cannot be stopped, such as one under sudo. On
Linux the command also dies if baton itself is killed, but not what the command has
started. On Windows the command and what it starts are a job object, which ends with
baton; TERM is Ctrl-Break there.

A request to release the lock ("baton ask") is printed, and sent to the command as a
signal with --on-ask. "baton show @ask/$BATON_KEY" tells the command the reason.

` + exitTableRun,
		Example: `  baton run nightly-report -- ./report.sh
  baton run -n -E 0 nightly-report -- ./report.sh      unless it is running; once a night: baton once
  baton run -n -E 0 --min-hold 10m poll -- ./poll.sh   from cron on many machines whose clocks
                                                       differ: not twice within ten minutes
  baton run -w 30s deploy/web -- ansible-playbook web.yml
  baton run --permits 1/4 transcode -- ffmpeg …             at most four at a time
  baton run --max-waiting 3 build -- make                   not if three wait already: exits with 75
  baton run --newest deploy -- ./deploy.sh                  of those that wait, only the latest stays
  baton run k -- sh -c 'curl -H "X-Token: $BATON_TOKEN" …'`,
	}
	r.flags(cmd)
	f := cmd.Flags()
	f.DurationVar(&r.maxHold, "max-hold", 0, "stop the command after this time (default: never)")
	f.DurationVar(&r.minHold, "min-hold", 0, "keep the lock for at least this long, even if the command ends sooner")
	f.DurationVarP(&r.grace, "grace", "k", 0, "time between TERM and KILL, at most a third of --ttl (default: 5s, or that third)")
	r.onAsk.flag(cmd)
	f.BoolVar(&r.newest, "newest", false, "wait only until a newer baton run --newest waits for the lock")
	cmd.MarkFlagsMutuallyExclusive("newest", "try")
	cmd.MarkFlagsMutuallyExclusive("newest", "max-waiting")
	f.IntVarP(&r.conflict, "conflict-exit-code", "E", exitNotAcquired, "exit `CODE` if the lock was not acquired; 0 where that is no failure")
	a.metricsFlag(cmd)

	cmd.Args = keyAndCommand("KEY")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return does(func(ctx context.Context, args []string) error {
			if err := a.measure(cmd); err != nil {
				return err
			}
			if err := r.check(cmd, args[0]); err != nil {
				return err
			}
			return a.runUnderLock(ctx, args[0], args[1:], r)
		})(cmd, args)
	}
	cmd.ValidArgsFunction = a.completeRun
	return cmd
}

// keyAndCommand demands a name, which messages call what, and a command behind "--".
func keyAndCommand(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		dash, path := cmd.ArgsLenAtDash(), cmd.CommandPath()
		switch {
		case len(args) == 0 || dash == 0:
			return usage("%s is missing: %s %[1]s -- COMMAND", what, path)
		case len(args) == 1:
			return usage("the command is missing: %s %s -- COMMAND", path, shellWord(args[0]))
		case dash < 0:
			return usage(`put "--" between %s and the command: %s %s -- %s …%s`, what, path, shellWord(args[0]), shellWord(args[1]), below(cmd, args))
		case dash > 1:
			return usage("one %s is enough: what is %q?", what, safe(args[1]))
		}
		return nil
	}
}

// below names the commands below one: the arguments may be misspelt names of them.
func below(cmd *cobra.Command, args []string) string {
	var names []string
	for _, c := range cmd.Commands() {
		names = append(names, c.Name())
	}
	if len(args) != 2 || len(names) == 0 {
		return ""
	}
	return "; commands of its own are " + strings.Join(names, ", ")
}

func (r *running) check(cmd *cobra.Command, key string) error {
	if err := r.asking.check(cmd, key); err != nil {
		return err
	}
	if r.newest {
		if err := check.Prefixed(newestPrefix, key, "its newest waiter"); err != nil {
			return usage("%w", err)
		}
	}
	switch {
	case !cmd.Flags().Changed("grace"):
		r.grace = standardGrace
	case r.grace < 0:
		return usage("--grace %v: it is not negative", r.grace)
	}
	r.ownGrace = cmd.Flags().Changed("grace")
	if err := r.fitGrace(); err != nil {
		return err
	}
	if r.maxHold < 0 || cmd.Flags().Changed("max-hold") && r.maxHold == 0 {
		return usage("--max-hold %v: it is a duration above zero", r.maxHold)
	}
	if r.minHold < 0 || cmd.Flags().Changed("min-hold") && r.minHold == 0 {
		return usage("--min-hold %v: it is a duration above zero", r.minHold)
	}
	if r.maxHold > 0 && r.minHold > r.maxHold {
		return usage("--min-hold %v is longer than --max-hold %v", r.minHold, r.maxHold)
	}
	if r.minHold > 0 {
		r.options = append(r.options, baton.MinHold(r.minHold))
	}
	if r.conflict < 0 || r.conflict > 255 {
		return usage("--conflict-exit-code %d: exit codes go from 0 to 255", r.conflict)
	}
	return nil
}

func (a *app) runUnderLock(ctx context.Context, key string, command []string, r *running) error {
	path, err := find(command[0])
	if err != nil {
		return err
	}
	owner := check.Owner(os.Getpid(), command[0])
	locks, store, err := a.openWith(ctx, r.openWait(), func() baton.Config { return r.config(owner) }, r.checkTTL)
	if err != nil {
		return err
	}
	defer shut(store)
	if r.newest { // giving way to a newer waiter is not a loss for logs, metrics and alerts
		if r.waiters, err = baton.New(store, r.config(owner)); err != nil {
			return err
		}
	}
	if !store.Traits().Processes {
		a.complain("store %s is not shared with other processes: this lock keeps no other process out", store.Traits().Store)
	}

	sigs, stop := listenForCommand()
	defer stop()
	lease, err := a.acquire(locks, key, owner, &r.asking, sigs)
	if err != nil {
		if codeOf(err) == exitNotAcquired {
			return r.skipped(a, err)
		}
		return err
	}
	code := a.hold(lease, r, a.under(lease, path, command, owner), sigs)
	if code.err != nil && r.minHold > 0 {
		return releaseNow(ctx, locks, lease, &exit{Code: code.code, Err: code.err})
	}
	if a.release(lease, &code); code.lost != nil {
		return &exit{Code: exitLost, Err: nil}
	}
	if code.err != nil || code.code != 0 {
		return &exit{Code: code.code, Err: code.err}
	}
	return nil
}

// releaseNow releases the lock of a command that did not run, because of why. It detaches
// the lease first: a detached lease has no --min-hold, which would keep others out for
// nothing.
func releaseNow(ctx context.Context, locks *baton.Locker, lease *baton.Lease, why error) error {
	handle, err := lease.Detach()
	if err != nil { // it was lost
		return why
	}
	return takeBack(ctx, locks, handle, why)
}

// release unlocks the lock of a command that has ended. Unlock may be the first to find
// that the lease is lost.
func (a *app) release(lease *baton.Lease, end *ending) {
	err := lease.Unlock()
	switch {
	case err == nil || end.lost != nil:
	case errors.Is(err, baton.ErrLost) && end.own:
		a.outlived(err, end.code)
		end.lost = err
	default:
		a.complain("%s", explain(err))
	}
}

// outlived reports a command that was not stopped although the lease was lost.
func (a *app) outlived(lost error, code int) {
	a.complain("%s; the command ended by itself, with %d, perhaps without the lock", explain(lost), code)
}

// checkTTL checks the TTL, and adapts the grace to it.
func (r *running) checkTTL(traits driver.Traits) error {
	if err := r.asking.checkTTL(traits); err != nil {
		return err
	}
	return r.fitGrace()
}

// fitGrace shortens the default grace to a third of the TTL, and refuses a longer
// --grace.
func (r *running) fitGrace() error {
	if r.ownGrace && r.grace > r.ttl/3 {
		return usage("--grace %v: it is at most a third of --ttl %v, so that the command has ended before another process can get the lock; a longer --ttl allows more", r.grace, r.ttl)
	}
	r.grace = min(r.grace, r.ttl/3)
	return nil
}

// under is the command with its arguments, its environment and our files.
func (a *app) under(lease *baton.Lease, path string, command []string, owner string) supervise.Command {
	return supervise.Command{
		Path:  path,
		Args:  command,
		Env:   environment(lease.Key(), lease.Token(), owner),
		Stdin: a.stdin, Stdout: a.stdout, Stderr: a.stderr,
	}
}

// config leaves time to stop the command before the store can grant an expired lock to
// another process.
func (r *running) config(owner string) baton.Config {
	return baton.Config{TTL: r.ttl, Margin: r.margin(), Owner: owner}
}

// margin is how long the store keeps the lock after the lease has ended.
func (r *running) margin() time.Duration { return r.ttl/10 + r.grace }

// listenForCommand subscribes to the signals that are passed on to a command.
func listenForCommand() (sigs chan os.Signal, stop func()) {
	sigs, stopSigs := listen(supervise.Passed()...)
	// When the reader of our messages ends, we must not end before the command.
	_, stopPipe := listen(syscall.SIGPIPE)
	return sigs, func() { stopSigs(); stopPipe() }
}

// skipped is the end of a run that did not get the lock.
func (r *running) skipped(a *app, err error) error {
	if r.conflict == 0 {
		if a.measured != nil {
			a.measured.skipped = true
		}
		a.say("skipped: %s", explain(err))
		return nil
	}
	if a.quiet {
		err = nil
	}
	return &exit{Code: r.conflict, Err: err}
}

// ending is how a command under a lock ended.
type ending struct {
	code int
	sig  syscall.Signal // that ended it; 0: none
	err  error          // why it could not be started
	lost error          // the lease was lost
	own  bool           // the command was not stopped: code is its own, even if the lease was lost
	last bool           // never start it again: a signal asked it to end, or a part of it is left
	late bool           // --max-hold ended, and the command was stopped
}

const wantsTerminal = "the command wants the terminal, which is no longer ours: it was hung up"

// hold runs the command while the lease lasts. When it returns, either nothing of the
// command runs, or the lock has ended in the store.
func (a *app) hold(lease *baton.Lease, r *running, command supervise.Command, sigs chan os.Signal) ending {
	if err := lease.Err(); err != nil {
		a.complain("%s; the command was not started", explain(err))
		return ending{lost: err}
	}
	// Listen before the command starts: it may be suspended at once, and we together with
	// it.
	moreSigs, stop := listen(supervise.JobControl...)
	defer stop()
	command.MayResume = func() bool { return lease.Err() == nil }
	child, err := supervise.Start(command)
	if err != nil {
		return ending{code: exitCannotRun, err: fmt.Errorf("cannot execute %s: %w", safe(command.Args[0]), withoutPath(err))}
	}
	var maxHold <-chan time.Time
	if r.maxHold > 0 {
		timer := time.NewTimer(r.maxHold)
		defer timer.Stop()
		maxHold = timer.C
	}
	trust := newTrust(lease)
	defer trust.timer.Stop()
	told := false        // a signal asked it to end
	var passed os.Signal // the last such signal
	hungUp := child.HungUp()
	asked, byAsk := lease.Asked(), false // a request sent r.onAsk
	for {
		select {
		case <-hungUp:
			hungUp = nil
			a.complain(wantsTerminal)
		case <-child.Done():
			select {
			case <-hungUp:
				a.complain(wantsTerminal)
			default:
			}
			end := a.done(lease, r, child, trust)
			sig, terminal := child.KilledBy()
			end.sig = sig
			if end.lost == nil && (terminal && !(byAsk && sig == syscall.Signal(r.onAsk)) || sig == passed) {
				a.death = death{sig: sig, unheard: sig != passed}
			}
			return end
		case <-lease.Done():
			if child.Ended() { // a process that was suspended sees both at once
				return a.done(lease, r, child, trust)
			}
			// This process may see it late, perhaps too late for any grace. So nothing is
			// printed before: a pipe may be full.
			outcome := child.Stop(trust.rest(r.grace))
			err := lease.Err()
			a.complain("%s; the command was stopped", explain(err))
			a.stopped(outcome)
			if outcome.Left {
				a.keep(lease, r, child, trust)
			}
			return ending{lost: err, last: told || outcome.Left}
		case <-maxHold:
			outcome := child.Stop(r.grace)
			a.say("the lock was held for %v: the command was stopped", r.maxHold)
			a.stopped(outcome)
			if outcome.Left {
				a.keep(lease, r, child, trust)
				if err := lease.Err(); err != nil {
					return ending{lost: err, last: true}
				}
			}
			if outcome.Killed {
				return ending{code: exitKilled, late: true}
			}
			return ending{code: exitMaxHold, late: true}
		case reason, open := <-asked:
			if !open { // the lease has ended
				asked = nil
				continue
			}
			a.heed(lease, reason, r.onAsk, child)
			byAsk = byAsk || r.onAsk != 0
		case s := <-sigs:
			if ends(s) {
				told, passed = true, s
			}
			child.Signal(s)
		case s := <-moreSigs:
			child.Signal(s)
		case <-trust.timer.C:
			trust.look(lease)
		}
	}
}

// done ends the run of a command that was not stopped. If the lease has ended as well, it
// is unknown which ended first: the lease then counts as lost.
func (a *app) done(lease *baton.Lease, r *running, child *supervise.Child, trust *trust) ending {
	end := ending{code: child.Code(), own: true}
	grace := r.grace
	if end.lost = lease.Err(); end.lost != nil {
		grace = trust.rest(grace)
	}
	if a.stopRest(child, grace).Left {
		a.keep(lease, r, child, trust)
	}
	if end.lost = lease.Err(); end.lost != nil {
		a.outlived(end.lost, end.code)
	}
	return end
}

// stopRest stops the processes that the command left behind.
func (a *app) stopRest(child *supervise.Child, grace time.Duration) (outcome supervise.Outcome) {
	if !child.Gone() {
		outcome = child.Stop(grace)
		a.say("the command left processes behind: they were stopped")
		a.stopped(outcome)
	}
	return outcome
}

// keep waits for what Stop could not end. An Unlock before that would let the next holder
// run at the same time. If the lease is lost, an Unlock would make the store forget the
// claim before its TTL ends.
func (a *app) keep(lease *baton.Lease, r *running, child *supervise.Child, trust *trust) {
	if lease.Err() == nil {
		a.complain("the lock is kept until it has ended")
	}
	look := time.NewTicker(100 * time.Millisecond)
	defer look.Stop()
	lost := lease.Done()
	var expired <-chan time.Time
	for !child.Gone() {
		select {
		case <-look.C:
		case <-trust.timer.C:
			trust.look(lease)
		case <-lost:
			lost = nil
			timer := time.NewTimer(trust.until.Add(r.margin()).Sub(bootclock.Now()))
			defer timer.Stop()
			expired = timer.C
		case <-expired:
			return
		}
	}
}

func (a *app) stopped(o supervise.Outcome) {
	switch {
	case o.Denied:
		a.complain("it is still there: baton may not signal it, it runs as another user")
	case o.Left:
		a.complain("it was killed but is still there: something in the kernel holds it up")
	case o.Killed:
		a.say("it had to be killed")
	}
}

// trust remembers how long the lease could be trusted, which tells how late its end was
// noticed.
type trust struct {
	until time.Time
	timer *time.Timer
}

func newTrust(lease *baton.Lease) *trust {
	t := &trust{timer: time.NewTimer(time.Hour)}
	t.look(lease)
	return t
}

func (t *trust) look(lease *baton.Lease) {
	if lease.Err() == nil {
		left := time.Until(lease.Deadline())
		t.until = bootclock.Now().Add(left)
		t.timer.Reset(left)
	}
}

// rest is the remaining grace.
func (t *trust) rest(grace time.Duration) time.Duration {
	return max(0, grace-max(0, bootclock.Now().Sub(t.until)))
}

// environment is our environment with the variables of the lock, and more. They replace
// those of an outer lock.
func environment(key string, token int64, owner string, more ...string) []string {
	ours := append(more,
		"BATON_HELD=true",
		"BATON_KEY="+key,
		"BATON_TOKEN="+strconv.FormatInt(token, 10),
		"BATON_OWNER="+owner,
	)
	var env []string
	for _, e := range os.Environ() {
		switch name, _, _ := strings.Cut(e, "="); name {
		case "BATON_HELD", "BATON_KEY", "BATON_TOKEN", "BATON_OWNER", "BATON_ATTEMPT":
		default:
			env = append(env, e)
		}
	}
	return append(env, ours...)
}

// find looks up the command before any lock is acquired.
func find(command string) (path string, err error) {
	path, err = exec.LookPath(command)
	if err == nil {
		return path, nil
	}
	command = redactURL(command) // it may be the URL of a store
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, exec.ErrNotFound):
		return "", &exit{Code: exitNotFound, Err: fmt.Errorf("command not found: %s", safe(command))}
	case errors.Is(err, exec.ErrDot):
		return "", &exit{Code: exitNotFound, Err: fmt.Errorf("command not found: %s; for the one in this directory write ./%[1]s", safe(command))}
	}
	return "", &exit{Code: exitCannotRun, Err: fmt.Errorf("cannot execute %s: %w", safe(command), errors.Unwrap(err))}
}

func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
