//go:build unix

package supervise

import (
	"errors"
	"os"
	"runtime"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Child is a command that was started. Its methods are safe for concurrent use.
type Child struct {
	pid       int // also the number of the group
	mayResume func() bool
	terminal  *terminal
	hungUp    chan struct{}
	refused   int  // how often the terminal was refused
	crowded   bool // this process had children before the command, so an orphan may belong to either
	done      chan struct{}
	status    unix.WaitStatus // after done
	atTheEnd  bool            // after done: the command had the terminal
}

// Start starts the command. If the error is not nil, fork or exec failed and the
// command did not run.
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

// run starts the command and waits for it. It keeps its thread until then: Linux ends the
// command when the thread that started it ends.
func (c *Child) run(cmd Command, started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()

	adoptOrphans()
	terminal := openTerminal()
	c.crowded = len(strays()) > 0 // a script that became this process by exec may have left some
	attr := dieWithParent(&syscall.SysProcAttr{Setpgid: true})
	if terminal.interactive(cmd.Stdin, cmd.Stdout) {
		// Set before the command runs: a key typed at its first prompt must reach it.
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
	process.Release() // Wait4 below collects the status and the stops, which os.Process does not show
	started <- nil

	// Wait for all children, because process 1 of a container must collect all orphans;
	// at the end only for the group, so that the next command is left alone.
	for whom := -1; ; {
		var status unix.WaitStatus
		pid, err := unix.Wait4(whom, &status, unix.WUNTRACED, nil)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil: // ECHILD: none is left
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

// Done is closed when the command has ended. Processes that it started may still run.
func (c *Child) Done() <-chan struct{} { return c.done }

// HungUp is closed when the command was told to end because it wants a terminal that no
// shell can give it.
func (c *Child) HungUp() <-chan struct{} { return c.hungUp }

// Ended reports whether the command has ended. If so it waits until Done is closed: a
// process that was itself suspended may see other events first.
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

// Code is what a shell would report: the exit code, or 128 and the number of the signal
// that ended the command. It is valid when Done is closed.
func (c *Child) Code() int {
	if c.status.Signaled() {
		return 128 + int(c.status.Signal())
	}
	return c.status.ExitStatus()
}

// KilledBy is the signal that ended the command, or 0, and whether the command had the
// terminal: the signal may then be a key, which no process above us knows of. It is valid
// when Done is closed.
func (c *Child) KilledBy() (sig syscall.Signal, terminal bool) {
	if !c.status.Signaled() {
		return 0, false
	}
	return c.status.Signal(), c.atTheEnd
}

// Signal passes on a signal to the group. SIGCONT also gives the terminal to the command
// if this process is in the foreground; if the command may not resume, it is not passed
// on.
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

// Stop ends the command and what it has started: by TERM, and after the grace by KILL. It
// returns when nothing is left, or when that cannot be achieved: see Outcome. Without
// grace it only kills, and a suspended command never runs again.
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
		return !c.inGroup() && len(c.groups()) == 0 // the look for other groups is expensive
	default:
		return false
	}
}

// groups are the groups that have a process of the command. While the command runs, it
// finds another group only if that is already a child of this process.
func (c *Child) groups() (left []int) {
	if c.inGroup() {
		left = append(left, c.pid)
	}
	if c.crowded {
		return left
	}
	for _, group := range strays() {
		if group != c.pid && group != unix.Getpgrp() { // never end our own
			left = append(left, group)
		}
	}
	return left
}

// inGroup reports whether a process is left in the command's own group. The system reuses
// the number of an empty group only after all other numbers: the moment between this
// check and a signal is too short for that.
func (c *Child) inGroup() bool { return !errors.Is(unix.Kill(-c.pid, 0), unix.ESRCH) }

// end signals all groups that it finds, until nothing is left. It returns false if that
// takes longer than the limit.
func (c *Child) end(sig syscall.Signal, limit time.Duration) bool {
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	told := make(map[int]bool)
	tell := func() (left bool) {
		groups := c.groups()
		for _, group := range groups {
			// Killed processes may have started others meanwhile.
			if !told[group] || sig == unix.SIGKILL {
				told[group] = true
				_ = unix.Kill(-group, sig)
				if sig != unix.SIGKILL { // suspended processes would not see it
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
	// The rest may not be our children: the kernel does not say when they end.
	for {
		began := time.Now()
		if !tell() {
			return true
		}
		// The look is expensive on a machine with many processes.
		look := time.NewTimer(max(5*time.Millisecond, 4*time.Since(began)))
		select {
		case <-look.C:
		case <-deadline.C:
			look.Stop()
			return c.Gone()
		}
	}
}
