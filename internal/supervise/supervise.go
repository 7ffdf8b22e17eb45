// Package supervise runs one command in a process group of its own, and tells when
// nothing of it is left.
//
// The command is stopped as a group, together with what it started. On Linux this
// includes processes that have left the group, as "timeout" does with what it runs, but
// not those that have left the session: a daemon that called setsid is no longer a child
// of any process here. On Linux the command also dies with this process, in whatever way;
// dieWithParent names the exceptions.
//
// On a terminal the group becomes the foreground job: the command reads the keyboard, and
// Ctrl-C and Ctrl-Z reach it, as if the shell had started it. See terminal.
//
// On Windows the command and what it starts are a job object, which ends as a whole and
// with this process. TERM is Ctrl-Break there. It reaches the processes of the command's
// console that have no group of their own; a program that does not handle it ends.
//
// The supervising process waits for all its children, adopted ones included: until the
// command has ended nothing else in it may start processes.
package supervise

import (
	"os"
	"syscall"
	"time"
)

// Command says what to run.
type Command struct {
	Path                  string   // the file to execute, already looked up
	Args                  []string // the arguments, beginning with the name
	Env                   []string
	Stdin, Stdout, Stderr *os.File

	// MayResume is asked before a command that was suspended on the terminal resumes. If
	// it returns false, the command stays suspended and can only be killed. Nil means
	// yes.
	MayResume func() bool
}

// Outcome says how Stop ended the group.
type Outcome struct {
	Killed bool // a process had to be killed
	Left   bool // a process still ran when Stop gave up: signals cannot end it
	Denied bool // this process may not signal one of those left
}

// afterKill is how long Stop waits for the kernel to end killed processes.
const afterKill = 2 * time.Second

// A Named is a signal with the name that people give it.
type Named struct {
	Name   string
	Signal syscall.Signal
}
