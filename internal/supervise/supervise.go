//go:build unix

// Package supervise runs one command as a process group of its own and can
// say when nothing of it is left.
//
// The command is stopped as a group: what it started is stopped with it. On
// Linux this includes those who have left the group, as "timeout" does with what
// it runs, but not those who have left the session: a daemon that called setsid
// is nobody's child any more. On Linux the command also dies with this process,
// however this process ends; see dieWithParent for what that does not cover.
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
	hungUp    chan struct{}
	refused   int  // how often the terminal was
	crowded   bool // there were children before: whose orphans strays are, nobody knows
	done      chan struct{}
	status    unix.WaitStatus // after done
	atTheEnd  bool            // likewise: it had the terminal
}

// Start starts the command. The error is that of fork or exec; the command
// did not run then.
func Start(c Command) (*Child, error) {
	child := &Child{mayResume: c.MayResume, done: make(chan struct{}), hungUp: make(chan struct{})}
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
	c.crowded = len(strays()) > 0 // of a script that became us by exec
	attr := dieWithParent(&syscall.SysProcAttr{Setpgid: true})
	if terminal.interactive(cmd.Stdin, cmd.Stdout) {
		// Before it runs: a key that answers its first words is for it.
		attr.Foreground, attr.Ctty = true, int(terminal.file.Fd())
	}
	process, err := os.StartProcess(cmd.Path, cmd.Args, &os.ProcAttr{
		Env:   cmd.Env,
		Files: []*os.File{cmd.Stdin, cmd.Stdout, cmd.Stderr},
		Sys:   attr,
	})
	if attr.Foreground {
		terminal.inBackground()
	}
	if err != nil {
		if attr.Foreground {
			terminal.give(unix.Getpgrp())
		}
		terminal.close()
		started <- err
		return
	}
	c.pid, c.terminal = process.Pid, terminal
	process.Release() // the status is collected below, with stops, which os.Process does not show
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
			c.status, c.atTheEnd = status, terminal.foreground(c.pid)
			terminal.takeBack(c.pid)
			close(c.done)
			whom = -c.pid
		}
	}
}

// Done is closed when the command has ended. Processes that it started may
// still run.
func (c *Child) Done() <-chan struct{} { return c.done }

// HungUp is closed when the command was told to end because it wants a terminal
// that nobody can give it.
func (c *Child) HungUp() <-chan struct{} { return c.hungUp }

// Ended reports whether the command has ended, and if so waits until Done is
// closed. A process that was suspended itself may know of other things earlier.
func (c *Child) Ended() bool {
	select {
	case <-c.done:
	default:
		if !hasEnded(c.pid) {
			return false
		}
		<-c.done
	}
	return true
}

// Code is what a shell would report: the exit code, or 128 and the number of
// the signal that ended the command. It is valid when Done is closed.
func (c *Child) Code() int {
	if c.status.Signaled() {
		return 128 + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// KilledBy is the signal that ended the command, or 0, and whether it had the
// terminal then, so that the signal may be a key that was typed, of which nobody
// above us knows. It is valid when Done is closed.
func (c *Child) KilledBy() (sig syscall.Signal, terminal bool) {
	if !c.status.Signaled() {
		return 0, false
	}
	return c.status.Signal(), c.atTheEnd
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

// Stop ends the command and what it has started: TERM, and KILL for those who
// are still there after the grace. It returns when nothing is left, or when that
// cannot be had: see Outcome. Without grace it only kills; a suspended command
// then never gets to run again.
func (c *Child) Stop(grace time.Duration) Outcome {
	if c.Gone() || grace > 0 && c.end(unix.SIGTERM, grace) {
		return Outcome{}
	}
	if c.end(unix.SIGKILL, afterKill) {
		return Outcome{Killed: true}
	}
	o := Outcome{Killed: true, Left: true}
	for _, group := range c.groups() {
		o.Denied = o.Denied || errors.Is(unix.Kill(-group, unix.SIGKILL), unix.EPERM)
	}
	return o
}

// Gone reports whether nothing of the command and of what it started is left.
func (c *Child) Gone() bool {
	select {
	case <-c.done:
		return !c.inGroup() && len(c.groups()) == 0 // to look for others is dear
	default:
		return false
	}
}

// groups are those in which somebody of the command is left. While the command
// runs others are found only as far as they are our children already.
func (c *Child) groups() (left []int) {
	if c.inGroup() {
		left = append(left, c.pid)
	}
	if c.crowded {
		return left
	}
	for _, group := range strays() {
		if group != c.pid && group != unix.Getpgrp() { // ours is not to be ended
			left = append(left, group)
		}
	}
	return left
}

// inGroup reports whether somebody is left in the command's own group. The number
// of an empty group could be given to a new one, but not before all other numbers
// have been used: the moment between this check and a signal is too short for that.
func (c *Child) inGroup() bool { return !errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH) }

// end sends a signal to all groups, as they are found, until nothing is left. It
// reports false if that takes longer than the limit.
func (c *Child) end(sig syscall.Signal, limit time.Duration) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	told := make(map[int]bool)
	tell := func() (left bool) {
		groups := c.groups()
		for _, group := range groups {
			// Those who are killed may have started others meanwhile.
			if !told[group] || sig == unix.SIGKILL {
				told[group] = true
				_ = unix.Kill(-group, sig)
				if sig != unix.SIGKILL { // those who are suspended would not see it
					_ = unix.Kill(-group, unix.SIGCONT)
				}
			}
		}
		return len(groups) > 0
	}
	tell()
	select {
	case <-c.done:
	case <-deadline.C:
		return false
	}
	// The rest may not be our children: nobody tells us.
	for {
		began := time.Now()
		if !tell() {
			return true
		}
		// Looking is dear on a machine with many processes.
		look := time.NewTimer(max(5*time.Millisecond, 4*time.Since(began)))
		select {
		case <-look.C:
		case <-deadline.C:
			look.Stop()
			return c.Gone()
		}
	}
}
