//go:build unix

// Package supervise runs one command as a process group of its own and can
// say when nothing of that group is left.
//
// The command is stopped as a group: what it started is stopped with it,
// unless that has left the group (a daemon that called setsid is nobody's
// child any more). On Linux the command also dies with this process, however
// this process ends; see dieWithParent for what that does not cover.
//
// On a terminal the group becomes the foreground job, so that the command
// reads the keyboard and Ctrl-C and Ctrl-Z reach it as if it had been started
// by the shell: see terminal.
//
// A process that supervises waits for all its children, adopted ones
// included: until the command has ended nothing else in it may start
// processes.
package supervise

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Command says what to run.
type Command struct {
	Path                  string   // the file to execute, already looked up
	Args                  []string // the arguments, beginning with the name
	Env                   []string
	Stdin, Stdout, Stderr *os.File

	// MayResume is asked before a command that was suspended on the
	// terminal goes on. If it answers false, the command stays suspended
	// and can only be killed. Nil means yes.
	MayResume func() bool
}

// Child is a command that was started. Its methods may be called from several
// goroutines.
type Child struct {
	pid       int // also the number of the group
	mayResume func() bool
	terminal  *terminal
	done      chan struct{}
	status    unix.WaitStatus // after done
}

// Start starts the command. The error is that of fork or exec; the command
// did not run then.
func Start(c Command) (*Child, error) {
	child := &Child{mayResume: c.MayResume, done: make(chan struct{})}
	if child.mayResume == nil {
		child.mayResume = func() bool { return true }
	}
	started := make(chan error, 1)
	go child.run(c, started)
	if err := <-started; err != nil {
		return nil, err
	}
	return child, nil
}

// run starts the command and waits for it. It keeps its thread until then,
// because Linux ends the command when the thread that started it ends.
func (c *Child) run(cmd Command, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	adoptOrphans()
	terminal := openTerminal()
	process, err := os.StartProcess(cmd.Path, cmd.Args, &os.ProcAttr{
		Env:   cmd.Env,
		Files: []*os.File{cmd.Stdin, cmd.Stdout, cmd.Stderr},
		Sys:   dieWithParent(&syscall.SysProcAttr{Setpgid: true}),
	})
	if err != nil {
		terminal.close()
		started <- err
		return
	}
	c.pid, c.terminal = process.Pid, terminal
	process.Release() // the status is collected below, with stops, which os.Process does not show
	if terminal.interactive(cmd.Stdin, cmd.Stdout) {
		terminal.give(c.pid)
		c.signal(unix.SIGCONT) // in case it was quicker and was stopped for reading
	}
	started <- nil

	// Everybody, because process 1 of a container must collect all orphans;
	// at the end only the group, so that the next command is left alone.
	for whom := -1; ; {
		var status unix.WaitStatus
		pid, err := unix.Wait4(whom, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD: nobody is left
			return
		case pid != c.pid: // an orphan of the command, adopted
		case status.Stopped():
			c.suspended(status.StopSignal())
		default:
			c.status = status
			terminal.takeBack(c.pid)
			close(c.done)
			whom = -c.pid
		}
	}
}

// Done is closed when the command has ended. Processes that it started may
// still run.
func (c *Child) Done() <-chan struct{} { return c.done }

// Code is what a shell would report: the exit code, or 128 and the number of
// the signal that ended the command. It is valid when Done is closed.
func (c *Child) Code() int {
	if c.status.Signaled() {
		return 128 + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// Signal passes a signal that this process received on to the group. SIGCONT
// also gives the terminal to the command if this process is in the
// foreground, and is held back if the command may not resume.
func (c *Child) Signal(s os.Signal) {
	sig, ok := s.(syscall.Signal)
	if !ok {
		return
	}
	if sig == unix.SIGCONT {
		if !c.mayResume() {
			return
		}
		c.terminal.giveIfForeground(c.pid)
	}
	c.signal(sig)
}

func (c *Child) signal(sig syscall.Signal) { _ = unix.Kill(-c.pid, sig) }

// Outcome says how Stop ended the group.
type Outcome struct {
	Killed bool // somebody had to be killed
	Left   bool // somebody still ran when Stop gave up, out of the reach of signals
	Denied bool // of those who are left, there are some whom this process may not signal
}

// afterKill is how long Stop waits for the kernel to end what was killed.
const afterKill = 2 * time.Second

// Stop ends the group: TERM, and KILL for those who are still there after the
// grace. It returns when nothing of the group is left, or when that cannot be
// had: see Outcome. Without grace it only kills; a suspended command then never
// gets to run again.
func (c *Child) Stop(grace time.Duration) Outcome {
	if c.Gone() {
		return Outcome{}
	}
	if grace > 0 {
		c.signal(unix.SIGTERM)
		c.signal(unix.SIGCONT) // or those who are suspended would not see it
		if c.awaitGone(grace) {
			return Outcome{}
		}
	}
	c.signal(unix.SIGKILL)
	if c.awaitGone(afterKill) {
		return Outcome{Killed: true}
	}
	// The first kill may have reached others of the group.
	return Outcome{Killed: true, Left: true, Denied: errors.Is(unix.Kill(-c.pid, unix.SIGKILL), unix.EPERM)}
}

// Gone reports whether nothing of the group is left.
func (c *Child) Gone() bool {
	select {
	case <-c.done:
		// The number of an empty group could be given to a new one, but not
		// before all other numbers have been used: the moment between this
		// check and a signal is too short for that.
		return errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH)
	default:
		return false
	}
}

func (c *Child) awaitGone(limit time.Duration) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	select {
	case <-c.done:
	case <-deadline.C:
		return false
	}
	// The rest of the group are not our children: nobody tells us.
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for !c.Gone() {
		select {
		case <-look.C:
		case <-deadline.C:
			return c.Gone()
		}
	}
	return true
}
