//go:build unix

package supervise

import (
	"os"
	"slices"
	"syscall"

	"golang.org/x/sys/unix"
)

// Ending are the signals that ask a process to end or to do something, and that
// Child.Signal passes on.
var Ending = []Named{
	{"TERM", unix.SIGTERM},
	{"INT", unix.SIGINT},
	{"HUP", unix.SIGHUP},
	{"QUIT", unix.SIGQUIT},
	{"USR1", unix.SIGUSR1},
	{"USR2", unix.SIGUSR2},
}

// JobControl are the signals by which a terminal suspends and a shell continues.
var JobControl = []os.Signal{unix.SIGTSTP, unix.SIGCONT}

// Passed are the signals to pass on to a command.
func Passed() []os.Signal {
	signals := []os.Signal{unix.SIGWINCH}
	for _, of := range Ending {
		signals = append(signals, of.Signal)
	}
	slices.Reverse(signals)
	return signals
}

// Raise sends a signal to this process, or to its whole group.
func Raise(sig syscall.Signal, group bool) error {
	if group {
		return syscall.Kill(0, sig)
	}
	return syscall.Kill(os.Getpid(), sig)
}

// Become makes this process the program at path. It returns only if that fails.
func Become(path string, args, env []string) error { return syscall.Exec(path, args, env) }
