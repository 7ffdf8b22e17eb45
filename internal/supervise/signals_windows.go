package supervise

import (
	"os"
	"os/signal"
	"syscall"
)

// Ending are the signals that ask a process to end, and that Child.Signal passes on: the
// command gets each of them as Ctrl-Break. This process gets INT from Ctrl-C and
// Ctrl-Break, and TERM when its console is closed.
var Ending = []Named{
	{"TERM", syscall.SIGTERM},
	{"INT", syscall.SIGINT},
	{"HUP", syscall.SIGHUP},
	{"QUIT", syscall.SIGQUIT},
}

// JobControl is empty: no shell suspends processes here.
var JobControl []os.Signal

// Passed are the signals to pass on to a command.
func Passed() []os.Signal { return []os.Signal{syscall.SIGINT, syscall.SIGTERM} }

// Foreground is always false: all processes of a console get its keys.
func Foreground() bool { return false }

// Raise does nothing: no process ends by a signal here.
func Raise(syscall.Signal, bool) error { return syscall.EWINDOWS }

// Become runs the program at path and then ends this process with its exit code. It
// returns only if the program cannot be started.
func Become(path string, args, env []string) error {
	sigs := make(chan os.Signal, 1)
	signal.Notify(sigs, Passed()...)
	child, err := Start(Command{Path: path, Args: args, Env: env, Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr})
	if err != nil {
		signal.Stop(sigs)
		return err
	}
	for {
		select {
		case s := <-sigs:
			child.Signal(s)
		case <-child.Done():
			os.Exit(child.Code())
		}
	}
}
