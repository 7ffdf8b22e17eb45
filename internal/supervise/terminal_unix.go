//go:build unix

package supervise

import (
	"bytes"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"
	"golang.org/x/term"
)

// terminal is the controlling terminal of this process. It is nil for a process without
// one; then all methods do nothing.
//
// The shell knows only our own process group; the command has another one. We act for the
// command as a shell would:
//
//   - If we are the foreground job and the command talks to the terminal, its group becomes
//     the foreground one at once. If its input or output is something else, as in "baton run
//     ... | less", that happens only when reading from the terminal has stopped it, so that
//     the other commands keep the keyboard.
//   - If the command is suspended (Ctrl-Z), we suspend our own group, so that the shell shows
//     its prompt. Meanwhile the lease is not renewed.
//   - When the shell continues us, MayResume decides whether the command continues.
//   - If no shell watches us, a command that wants the terminal is ended: see hangUp.
type terminal struct {
	file *os.File
}

func openTerminal() *terminal {
	file, err := os.OpenFile("/dev/tty", os.O_RDWR, 0)
	if err != nil {
		return nil
	}
	return &terminal{file}
}

func (t *terminal) close() {
	if t != nil {
		t.file.Close()
	}
}

// Foreground reports whether this process is in the foreground job of a terminal, which
// gets the signals of its keys.
func Foreground() bool {
	t := openTerminal()
	defer t.close()
	return t.foreground(unix.Getpgrp())
}

// foreground reports whether group is the one that may read the terminal.
func (t *terminal) foreground(group int) bool {
	if t == nil {
		return false
	}
	now, err := unix.IoctlGetInt(int(t.file.Fd()), unix.TIOCGPGRP)
	return err == nil && now == group
}

// interactive reports whether we are the foreground job and the command would talk to its
// user.
func (t *terminal) interactive(in, out *os.File) bool {
	return t.foreground(unix.Getpgrp()) && term.IsTerminal(int(in.Fd())) && term.IsTerminal(int(out.Fd()))
}

// give makes group the foreground one.
func (t *terminal) give(group int) {
	if t == nil {
		return
	}
	t.inBackground()
	_ = unix.IoctlSetPointerInt(int(t.file.Fd()), unix.TIOCSPGRP, group)
}

// inBackground prepares this process to lose the terminal: otherwise changing it, or writing
// to it after "stty tostop", would suspend us. The command was started before and does not
// inherit this.
func (*terminal) inBackground() { signal.Ignore(unix.SIGTTOU) }

func (t *terminal) giveIfForeground(group int) {
	if t.foreground(unix.Getpgrp()) {
		t.give(group)
	}
}

// takeBack makes us the foreground job again if group was it.
func (t *terminal) takeBack(group int) {
	if t.foreground(group) {
		t.give(unix.Getpgrp())
	}
}

// suspended decides what happens to a command that the signal has stopped.
func (c *Child) suspended(by syscall.Signal) {
	t := c.terminal
	switch {
	case t == nil:
		return // another process sent STOP, and has to send CONT
	case by == unix.SIGTTIN || by == unix.SIGTTOU:
		if t.foreground(unix.Getpgrp()) {
			t.give(c.pid)
		}
		if t.foreground(c.pid) {
			c.Signal(unix.SIGCONT)
			return
		}
	case by != unix.SIGTSTP && !t.foreground(c.pid):
		return
	}
	t.takeBack(c.pid)
	switch {
	case !orphaned():
	case by == unix.SIGTTIN || by == unix.SIGTTOU:
		c.hangUp()
		return
	default:
		c.Signal(unix.SIGCONT) // no shell would continue us: the kernel refuses such stops as well
		return
	}
	// Stop the whole group, as the terminal would, with the script that waits for us. SIGCONT
	// comes back through Child.Signal.
	_ = unix.Kill(0, unix.SIGSTOP)
}

// hangUp ends a command that wants the terminal while no shell can give it: continued, it
// would only ask again. The kernel does the same to orphaned groups, but ours is not one for
// the kernel, because we are in the session.
func (c *Child) hangUp() {
	c.refused++
	switch c.refused {
	case 1:
		close(c.hungUp)
		c.signal(unix.SIGHUP)
	case 2: // it ignores SIGHUP, under nohup for example
		c.signal(unix.SIGTERM)
	default:
		c.signal(unix.SIGKILL)
	}
	c.Signal(unix.SIGCONT)
}

// orphaned reports whether no shell watches our process group: neither this process nor one
// of its ancestors in the group has a parent in another group of this session.
func orphaned() bool {
	session, err := unix.Getsid(0)
	if err != nil {
		return true
	}
	for parent := unix.Getppid(); ; {
		if parent == 0 { // outside our pid namespace; for the calls below 0 means ourselves
			return true
		}
		if s, err := unix.Getsid(parent); err != nil || s != session {
			return true
		}
		if g, err := unix.Getpgid(parent); err != nil || g != unix.Getpgrp() {
			return err != nil
		}
		p, err := look(parent)
		if parent = p.parent; err != nil {
			return false
		}
	}
}

// seen is what /proc shows of a process.
type seen struct{ parent, group, session int }

func look(pid int) (p seen, err error) {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return p, err
	}
	var state string
	// The name before these fields is in parentheses and may contain anything.
	_, err = fmt.Sscan(string(stat[bytes.LastIndexByte(stat, ')')+1:]), &state, &p.parent, &p.group, &p.session)
	return p, err
}
