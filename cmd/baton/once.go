package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/supervise"
	"github.com/batonhq/baton/internal/transcript"
	"github.com/batonhq/baton/once"
)

// onceFlags are the flags of "baton once".
type onceFlags struct {
	running
	keep     time.Duration
	final    string
	noReplay bool
	keepFail bool
	anyCmd   bool

	isFinal func(code int) bool // after check
}

const exitTableOnce = `Exit codes:
  the command's own, now or when it ran, or 128+n if signal n ended it
  64        wrong usage; the key belongs to another command (see --any-command)
  69        the store cannot be reached, or not any more: the outcome may not be recorded
  75        it is under way elsewhere, and waiting was not wanted or took too long
  78        wrong configuration: store URL, password, or a store without records
  79        lease lost: the command was stopped, or another attempt followed it and
            its outcome was not recorded
  124       --max-hold was reached and the command stopped (137 if it had to be killed)
  125       baton itself failed
  126, 127  the command cannot be executed, is not found
  128+n     signal n came while waiting, or while no program read what the command had left
`

func (a *app) onceCommand() *cobra.Command {
	o := &onceFlags{}
	cmd := &cobra.Command{
		Use:   "once [flags] KEY -- COMMAND [ARG…]",
		Short: "Run a command once, and replay its output to later calls",
		Long: `Runs the command unless it has succeeded before, anywhere, under this KEY. Its
output and exit code are recorded, and every later call replays them instead. Calls
that come meanwhile wait for it.

A command that fails is not an outcome: its exit code is passed on, and the next
call runs it again. --final makes exit codes outcomes that are recorded, too. Of one that
failed, "baton once show" and "baton once ls" tell the exit code, the signal and the time
until the next call runs it, for a week at most (or --keep, if longer);
--keep-failed-output also keeps the last 3 KiB of its output.

The same KEY with another command, or other arguments, is an error (64): nothing runs,
and nothing is replayed. Where command lines differ but mean the same, for example by the
name of a machine, give --any-command in every call.

While the command runs its lock is once/KEY: that is the name for baton show, watch, ask
and break. "baton once ls", "show" and "rm" list, show and remove what is recorded: no KEY
is ls, list, show or rm.

It may run more than once, though only one outcome is ever recorded: if it, or this
machine, crashes half-way, the next call runs it again. The command finds in its
environment

  BATON_KEY      the key
  BATON_TOKEN    the fencing token: higher with every attempt; pass it to what the command
                 changes, so that it can refuse a lower one
  BATON_ATTEMPT  1, or more if earlier attempts were not finished: what they did may be there
  BATON_OWNER    the name that baton show gives for this process
  BATON_HELD     true

There is no shell in between; standard input and signals are passed on, as by baton
run, and if the lease is lost the command is stopped. Its output is not a terminal, even
if baton's is. Its first 256 KiB are kept; a replay that lacks the rest says so, with -q,
too. It is kept in clear text, and "baton once rm" does not wipe it from the disk: a SQLite
file, its log and backups may hold it for longer. A command should print no secret.

` + exitTableOnce,
		Example: `  baton once migrate/2026-07 -- ./migrate.sh             by whichever machine is first
  baton once --no-replay --keep 48h report/$(date +%F) -- ./report.sh   from cron, on many
                                     machines: once a day (in a crontab "%" is written "\%")
  baton once --final 3,4 redeem/4711 -- ./redeem.sh 4711   3 and 4 are final: coupon spent, expired
  baton once show migrate/2026-07                        how did it end?
  baton once rm migrate/2026-07                          so that it can happen again`,
	}
	f := cmd.Flags()
	f.DurationVar(&o.keep, "keep", 24*time.Hour, "how long the outcome is kept")
	f.StringVar(&o.final, "final", "", "record these exit codes, too: a `LIST` such as 3,4, or all (1 to 125)")
	f.BoolVar(&o.noReplay, "no-replay", false, "do not replay the output of a command that ran before")
	f.BoolVar(&o.keepFail, "keep-failed-output", false, "keep the end of the output of a command that fails, too, for baton once show")
	f.BoolVar(&o.anyCmd, "any-command", false, "do not compare the command line with that of earlier calls")
	f.DurationVarP(&o.wait, "wait", "w", 0, "how long to wait while another process runs it (default: no limit)")
	f.BoolVarP(&o.try, "try", "n", false, "do not wait at all")
	f.DurationVar(&o.ttl, "ttl", baton.DefaultTTL, "how long other callers wait after a crash")
	f.DurationVar(&o.maxHold, "max-hold", 0, "stop the command after this time (default: never)")
	f.DurationVarP(&o.grace, "grace", "k", 0, "time between TERM and KILL, at most a third of --ttl (default: 5s, or that third)")
	o.onAsk.flag(cmd)
	a.metricsFlag(cmd)
	cmd.MarkFlagsMutuallyExclusive("wait", "try")

	cmd.Args = keyAndCommand("KEY")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return does(func(ctx context.Context, args []string) error {
			if err := a.measure(cmd); err != nil {
				return err
			}
			if err := o.check(cmd, args[0]); err != nil {
				return err
			}
			return a.runOnce(ctx, args[0], args[1:], o)
		})(cmd, args)
	}
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		if len(args) > 0 {
			return nil, cobra.ShellCompDirectiveDefault
		}
		return a.complete(args, held(once.LockPrefix, typed))
	}
	cmd.AddCommand(a.onceListCommand(), a.onceShowCommand(), a.onceRemoveCommand())
	return cmd
}

func (o *onceFlags) check(cmd *cobra.Command, key string) error {
	if err := checkOnceKey(key); err != nil {
		return err
	}
	if err := o.running.check(cmd, key); err != nil {
		return err
	}
	if o.keep < check.MinRecordKeep || o.keep > check.MaxRecordKeep {
		return usage("--keep %v: it is between %v and ten years", o.keep, check.MinRecordKeep)
	}
	var err error
	o.isFinal, err = parseCodes(o.final)
	return err
}

func checkOnceKey(key string) error {
	if len(key) > once.MaxKey {
		return usage("the key has %d bytes, at most %d are allowed", len(key), once.MaxKey)
	}
	if err := check.Key(key); err != nil {
		return usage("%w", err)
	}
	return nil
}

func parseCodes(text string) (func(int) bool, error) {
	codes := make(map[int]bool)
	switch text {
	case "":
	case "all": // without those of shells and signals
		for code := 1; code <= 125; code++ {
			codes[code] = true
		}
	default:
		for word := range strings.SplitSeq(text, ",") {
			code, err := strconv.Atoi(strings.TrimSpace(word))
			if err != nil || code < 1 || code > 255 {
				return nil, usage("--final %s: it is exit codes from 1 to 255, such as 3,4, or all", safe(text))
			}
			codes[code] = true
		}
	}
	return func(code int) bool { return codes[code] }, nil
}

// openOnce opens a store that has records.
func (a *app) openOnce(ctx context.Context, o *onceFlags, owner string, events *baton.Events) (ops *once.Runner, locks *baton.Locker, store driver.Store, err error) {
	var cfg baton.Config
	locks, store, err = a.openWith(ctx, o.openWait(), func() baton.Config { cfg = o.config(owner); return cfg }, o.checkTTL)
	if err != nil {
		return nil, nil, nil, err
	}
	cfg.Logger = a.logger()
	cfg.Events = metrics.Join(a.told(), metrics.Events{Locks: events}).Locks
	ops, err = once.New(store, once.Config{Keep: o.keep, Failure: failureText, Events: a.told().Once, Lock: cfg})
	if err != nil {
		shut(store)
		return nil, nil, nil, err
	}
	return ops, locks, store, nil
}

func (a *app) runOnce(ctx context.Context, key string, command []string, o *onceFlags) error {
	path, err := find(command[0])
	if err != nil {
		return err
	}
	owner := check.Owner(os.Getpid(), command[0])
	waiting := make(chan struct{}, 1)
	events := &baton.Events{Waiting: func(context.Context, baton.LockEvent) {
		select {
		case waiting <- struct{}{}:
		default:
		}
	}}
	ops, locks, store, err := a.openOnce(ctx, o, owner, events)
	if err != nil {
		return err
	}
	defer shut(store)
	if t := store.Traits(); !t.Processes {
		a.complain("store %s is not shared with other processes: it remembers nothing after this one", t.Store)
	}
	// The command continues even if no process reads its output.
	sigs, stop := listenForCommand()
	defer stop()

	w := &waitForTurn{
		a: a, locks: locks, key: key, owner: owner, o: o, waiting: waiting, sigs: sigs,
		turn: make(chan struct{}), over: make(chan struct{}),
	}
	ctx, w.giveUp = context.WithCancel(ctx)
	defer w.giveUp()
	type result struct {
		text []byte
		err  error
	}
	done := make(chan result, 1)
	var rec *recorder // nil: it did not run
	var opts []once.Option
	if !o.anyCmd {
		opts = append(opts, once.Fingerprint(command...))
	}
	do := ops.Do
	if o.try {
		do = ops.TryDo
	}
	go func() {
		text, err := do(ctx, key, func(ctx context.Context, at once.Attempt) ([]byte, error) {
			select {
			case w.turn <- struct{}{}:
				<-w.over // from here on this goroutine has the signals and the terminal
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
			var err error
			if rec, err = record(a.stdout, a.stderr); err != nil {
				return nil, err
			}
			return a.attempt(at, rec, path, command, o, owner, sigs)
		}, opts...)
		done <- result{text, err}
		close(w.turn)
	}()
	why := w.wait(ctx)
	r := <-done
	// Only now: the reader of the output may be slow, and other processes wait for the
	// outcome.
	var given os.Signal
	if rec != nil {
		given = rec.passOn(sigs)
		if rec.open && given == nil {
			a.say("a process that the command left behind has its output open: baton stops recording it")
		}
	}
	switch unrecorded, ok := errors.AsType[*once.UnrecordedError](r.err); {
	case ok:
		return a.notRecorded(key, unrecorded)
	case errors.Is(r.err, once.ErrOtherRequest):
		return otherCommand(key, r.err)
	case o.try && rec == nil && errors.Is(r.err, baton.ErrHeld):
		return underWayElsewhere(key, r.err)
	case given != nil && codeOf(r.err) != exitLost:
		return stoppedBy(given)
	case rec != nil:
		return a.ended(key, rec, r.text, r.err)
	case why != nil && r.err != nil && !errors.Is(r.err, once.ErrFinal):
		return why
	}
	return a.replay(key, r.text, r.err, o, sigs)
}

// waitForTurn is the time before the command runs or is known to have run.
type waitForTurn struct {
	a          *app
	locks      *baton.Locker
	key, owner string
	o          *onceFlags
	waiting    <-chan struct{}
	sigs       <-chan os.Signal
	turn       chan struct{} // attempt may run the command; closed: it does not have to run
	over       chan struct{} // closed at the end of the wait
	giveUp     context.CancelFunc
}

// wait returns when the command is about to run, or will not run; then its error says
// why.
func (w *waitForTurn) wait(ctx context.Context) (why error) {
	var late <-chan time.Time
	if w.o.waits {
		timer := time.NewTimer(w.o.left)
		defer timer.Stop()
		late = timer.C
	}
	defer close(w.over)
	announced := func() {}
	defer func() { announced() }()
	stop := func(err error) error {
		w.giveUp() // attempt can no longer start the command
		return err
	}
	for {
		select {
		case <-w.turn:
			return nil
		case s := <-w.sigs:
			if ends(s) {
				return stop(interrupted(s))
			}
		case <-late:
			return stop(w.late())
		case <-w.waiting:
			held := holder(w.locks, once.LockPrefix+w.key)
			if held == nil {
				continue
			}
			if held.Owner == os.Getenv("BATON_OWNER") && w.key == os.Getenv("BATON_KEY") && os.Getenv("BATON_ATTEMPT") != "" {
				return stop(&exit{Code: exitNotAcquired, Err: fmt.Errorf("%q is run by the baton once (%s) that started this: it would wait for itself", safe(w.key), safe(held.Owner))})
			}
			announced()
			announced = w.a.announce(ctx, w.locks, once.LockPrefix+w.key, w.owner, held, nil)
		}
	}
}

// late says that the wait took too long.
func (w *waitForTurn) late() error {
	what := "not finished in " + short(w.o.wait)
	if held := holder(w.locks, once.LockPrefix+w.key); held != nil {
		what += ": " + describe(held)
	}
	return &exit{Code: exitNotAcquired, Err: fmt.Errorf("%s; look with: baton once show %s", what, shellWord(w.key))}
}

// underWayElsewhere says which process runs the command. Nothing has waited for it.
func underWayElsewhere(key string, err error) error {
	what := "it is under way"
	if held, ok := errors.AsType[*baton.HeldError](err); ok {
		of := *held
		of.Key = once.LockPrefix + key // the name that other commands use
		what += ": " + describe(&of)
	}
	return &exit{Code: exitNotAcquired, Err: fmt.Errorf("%s; wait with -w 10s or look with: baton once show %s", what, shellWord(key))}
}

// afterOutput is how long processes that the command left behind may keep its output
// open.
const afterOutput = time.Second

// attempt runs the command and returns its transcript. After the command it prints
// nothing: a pipe may be full.
func (a *app) attempt(at once.Attempt, rec *recorder, path string, command []string, o *onceFlags, owner string, sigs chan os.Signal) ([]byte, error) {
	if at.Attempts > 1 {
		a.say("attempt %d at %q: the one before began and was not finished", at.Attempts, safe(at.Key))
	}
	end := a.hold(at.Lease, &o.running, supervise.Command{
		Path: path, Args: command, Stdin: a.stdin, Stdout: rec.stdout, Stderr: rec.stderr,
		Env: environment(at.Key, at.Token, owner, "BATON_ATTEMPT="+strconv.FormatInt(at.Attempts, 10)),
	}, sigs)
	rec.stop(afterOutput)
	switch {
	case end.lost != nil && !end.own: // otherwise the store knows whether another process followed
		return nil, rec.failed(&exit{Code: exitLost, Err: nil}, message(end.lost)+"; the command was stopped", o.keepFail) // the user has been told
	case end.err != nil:
		return nil, rec.failed(&exit{Code: end.code, Err: end.err}, end.err.Error(), false)
	}
	rec.text.Exit = end.code
	switch text := rec.text.Encode(); {
	case end.code == 0:
		return text, nil
	case o.isFinal(end.code) && !end.late:
		return nil, once.Final(errors.New(string(text)))
	}
	why := ""
	switch {
	case end.late:
		why = fmt.Sprintf("stopped after --max-hold %v", o.maxHold)
	case end.sig != 0:
		why = fmt.Sprintf("signal %d: %v", int(end.sig), end.sig)
	}
	return nil, rec.failed(&exit{Code: end.code, Err: nil}, why, o.keepFail)
}

// ended says how the command that just ran ended.
func (a *app) ended(key string, rec *recorder, text []byte, err error) error {
	if final, ok := errors.AsType[*once.FinalError](err); ok {
		text, err = []byte(final.Text), nil
	}
	if n := rec.text.Omitted; n > 0 && err == nil {
		a.say("the output is too long to be kept: its last %d bytes were not recorded", n)
	}
	if err != nil {
		if own, ok := errors.AsType[*exit](err); ok && own.Err == nil {
			if own.Code != exitLost {
				a.say("%q was not recorded: the next call runs it again", safe(key))
			}
			return own
		}
		return err
	}
	t, err := transcript.Decode(text)
	if err != nil || t.Exit == 0 {
		return err
	}
	return &exit{Code: t.Exit, Err: nil}
}

// notRecorded says that the outcome of the command was not recorded.
func (a *app) notRecorded(key string, e *once.UnrecordedError) error {
	code, advice := exitUnavailable, "the next call runs it again, unless it was recorded all the same"
	if errors.Is(e, driver.ErrSuperseded) {
		code, advice = exitLost, "look with: baton once show "+shellWord(key)
	}
	return &exit{Code: code, Err: fmt.Errorf("the command has ended, but its outcome was not recorded: %w; %s", e.Err, advice)}
}

// otherCommand says that the key was used for another command.
func otherCommand(key string, err error) error {
	text := "was begun, and not finished,"
	if other, ok := errors.AsType[*once.OtherRequestError](err); ok && other.Record.Done {
		text = "is done"
	}
	word := shellWord(key)
	return &exit{Code: exitUsage, Err: fmt.Errorf("%q %s with another command, so this one did not run: use another key, or look with baton once show %s; "+
		"--any-command takes both for the same, baton once rm %s makes it happen again", safe(key), text, word, word)}
}

// untilSignal waits for done, or for a signal that asks to end.
func untilSignal(done <-chan error, sigs <-chan os.Signal) (given os.Signal, err error) {
	for {
		select {
		case err := <-done:
			return nil, err
		case s := <-sigs:
			if ends(s) {
				return s, nil
			}
		}
	}
}

// replay repeats the output and the exit code of the command. A signal ends it: the
// reader may be slow.
func (a *app) replay(key string, text []byte, err error, o *onceFlags, sigs <-chan os.Signal) error {
	final, failed := errors.AsType[*once.FinalError](err)
	if failed {
		text = []byte(final.Text)
	} else if err != nil {
		return err
	}
	t, err := transcript.Decode(text)
	if err != nil { // another program wrote it, by package once
		t = &transcript.Transcript{Pieces: []transcript.Piece{{Stream: 1, Data: text}}}
		if failed {
			t = &transcript.Transcript{Exit: exitFailed, Pieces: []transcript.Piece{{Stream: 2, Data: append(text, '\n')}}}
		}
	}
	if o.noReplay {
		a.say("%q is done; its output is shown by: baton once show %s", safe(key), shellWord(key))
	} else {
		a.say("%q is done: replaying its output", safe(key))
		replayed := make(chan error, 1)
		go func() { replayed <- t.Replay(a.stdout, a.stderr) }()
		given, err := untilSignal(replayed, sigs)
		if given != nil {
			return stoppedBy(given)
		}
		if err != nil {
			return fmt.Errorf("replaying the output: %w", err)
		}
		if t.Omitted > 0 { // even if quiet: the replay differs from what the command printed
			a.complain("the last %d bytes of the output were not recorded", t.Omitted)
		}
	}
	if t.Exit != 0 {
		return &exit{Code: t.Exit, Err: nil}
	}
	return nil
}
