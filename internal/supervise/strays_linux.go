package supervise

import (
	"errors"
	"os"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// strays are the groups of our children, adopted ones included, that still run in our
// session. Such processes have changed their group, as "timeout" does, and lost their
// parents. A daemon has a session of its own.
func strays() []int {
	groups := straysNow()
	if len(groups) == 0 {
		groups = straysNow() // the first look may have missed one whose parent ended meanwhile
	}
	return groups
}

func straysNow() (groups []int) {
	var none unix.Siginfo
	if errors.Is(unix.Waitid(unix.P_ALL, 0, &none, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil), unix.ECHILD) {
		return nil
	}
	self := os.Getpid()
	if shown, err := os.Readlink("/proc/self"); err != nil || shown != strconv.Itoa(self) {
		return nil // the /proc of another pid namespace: its numbers are not ours
	}
	session, err := unix.Getsid(0)
	if err != nil {
		return nil
	}
	proc, err := os.Open("/proc")
	if err != nil {
		return nil
	}
	defer proc.Close()
	names, _ := proc.Readdirnames(-1)
	for _, name := range names {
		pid, err := strconv.Atoi(name)
		if err != nil {
			continue
		}
		p, err := look(pid)
		if err == nil && p.parent == self && p.session == session && !slices.Contains(groups, p.group) && !hasEnded(pid) {
			groups = append(groups, p.group)
		}
	}
	return groups
}

// hasEnded reports whether a child has ended, collected or not. The state in /proc is
// that of the first thread only.
func hasEnded(pid int) bool {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
	return errors.Is(err, unix.ECHILD) || err == nil && info.Signo != 0
}
