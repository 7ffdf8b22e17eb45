package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/supervise"
)

// Exit codes. The first block is that of sysexits(3), the second that of
// timeout(1) and of shells.
const (
	exitUnsafe = 1 // of baton doctor only

	exitUsage       = cli.ExitUsage
	exitUnavailable = cli.ExitUnavailable
	exitNotAcquired = cli.ExitNotAcquired
	exitConfig      = cli.ExitConfig
	exitLost        = cli.ExitLost

	exitMaxHold   = 124
	exitFailed    = cli.ExitFailed
	exitCannotRun = 126
	exitNotFound  = 127
	exitSignal    = cli.ExitSignal // plus the number of the signal
	exitKilled    = 137
)

const exitTable = `Exit codes:
  0         done
  64        wrong usage
  69        the store cannot be reached
  78        wrong configuration: store URL, password, or something the store cannot do
  125       baton itself failed
`

const exitTableLock = `Exit codes:
  0         done
  64        wrong usage
  69        the store cannot be reached
  75        lock not acquired: it is held, and waiting was not wanted or took too long, or
            too many wait
  78        wrong configuration: store URL, password, or something the store cannot do
  79        the lease ended before the handle could be printed
  125       baton itself failed
  128+n     signal n came while waiting for the lock
`

const exitTableHandle = `Exit codes:
  0         done
  64        wrong usage
  69        the store cannot be reached
  78        wrong configuration: store URL, password, or something the store cannot do
  79        the lease had ended: the handle is of no use any more
  125       baton itself failed
`

const exitTableBreak = `Exit codes:
  0         done
  64        wrong usage
  69        the store cannot be reached
  75        the lock was left alone: the answer was not yes
  78        wrong configuration: store URL, password, or something the store cannot do
  125       baton itself failed
`

const exitTableRun = `Exit codes:
  the command's own, or 128+n if signal n ended it
  64        wrong usage
  69        the store cannot be reached
  75        lock not acquired (-E changes it)
  78        wrong configuration: store URL, password, or something the store cannot do
  79        lease lost: the command was stopped, or had ended by itself when that was seen
  124       --max-hold was reached and the command stopped (137 if it had to be killed)
  125       baton itself failed
  126, 127  the command cannot be executed, is not found
  128+n     signal n came while waiting for the lock
`

const exitTableElect = `Exit codes:
  the command's own, or 128+n if signal n ended it
  64        wrong usage
  69        the store cannot be reached
  75        not elected within --wait
  78        wrong configuration: store URL, password, or something the store cannot do
  79        leadership lost, the command was stopped, and a signal kept it from standing
            again
  125       baton itself failed
  126, 127  the command cannot be executed, is not found
  128+n     signal n came while waiting to be elected
`

type exit = cli.Exit

var (
	usage     = cli.Usage
	codeOf    = cli.CodeOf
	redactURL = cli.RedactURL
	ofPage    = cli.OfFile
	misspelt  = cli.Misspelt
)

// ofRules is an error about the file of --rules.
func ofRules(err error) error { return fmt.Errorf("--rules: %w", ofPage(err)) }

// ofFile is an error about a file or its content. A URL in its name is redacted.
func ofFile(path string, err error) error {
	if errors.As(err, new(*fs.PathError)) {
		return ofPage(err)
	}
	return fmt.Errorf("%s: %w", redactURL(path), err)
}

// stoppedBy is the end by a signal while another program reads the output. It has no
// message: a program that stopped reading would not read that.
func stoppedBy(s os.Signal) error {
	n, _ := s.(syscall.Signal)
	return &exit{Code: exitSignal + int(n), Err: nil}
}

func interrupted(sig os.Signal) error { return interruptedIn(sig, "gave up the position") }

// interruptedIn says that a signal ended a wait, and what was done then.
func interruptedIn(sig os.Signal, done string) error {
	n, _ := sig.(syscall.Signal)
	return &exit{Code: exitSignal + int(n), Err: &interruption{n, done}}
}

type interruption struct {
	sig  syscall.Signal
	done string
}

func (i *interruption) Error() string {
	return fmt.Sprintf("%v while waiting: %s", i.sig, i.done)
}

// death is a signal from the terminal's keys. The calling shell must learn of it;
// otherwise a script would continue after Ctrl-C. The zero death is none.
type death struct {
	sig syscall.Signal
	// Only the command was in the foreground: the other processes in our group, such as
	// the shell of the script, have not got the signal.
	unheard bool
}

// die ends the process by the signal. A shell that got INT itself continues unless the
// process that it waits for dies of INT: an exit code means that the process has handled
// the signal.
func (d death) die() {
	if d.sig != syscall.SIGINT && !(d.sig == syscall.SIGQUIT && d.unheard) {
		return
	}
	// Process 1 cannot kill itself.
	if signal.Ignored(d.sig) || os.Getpid() == 1 || !supervise.Foreground() {
		return
	}
	if d.sig == syscall.SIGQUIT { // the shell does not look how this process died of it, and a core is of no use
		signal.Ignore(d.sig)
		_ = supervise.Raise(d.sig, d.unheard)
		return
	}
	signal.Reset(d.sig)
	if supervise.Raise(d.sig, d.unheard) == nil {
		<-time.After(time.Second) // the signal arrives before that
	}
}
