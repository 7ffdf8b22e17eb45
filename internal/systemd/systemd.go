// Package systemd speaks the two protocols between systemd and a service: sockets that
// are passed on, and the state that the service reports. Other supervisors speak them as
// well.
package systemd

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
)

const firstFD = 3

// Listener is the one socket that systemd listens at for this process. No socket or
// several are an error. It removes the environment variables of the protocol, so that no
// child takes them for its own.
func Listener() (net.Listener, error) {
	pid, fds := os.Getenv("LISTEN_PID"), os.Getenv("LISTEN_FDS")
	for _, name := range []string{"LISTEN_PID", "LISTEN_FDS", "LISTEN_FDNAMES"} {
		os.Unsetenv(name)
	}
	if pid != strconv.Itoa(os.Getpid()) {
		return nil, errors.New("systemd has passed on no socket to this process: is the service started by a socket unit?")
	}
	if fds != "1" {
		return nil, fmt.Errorf("systemd has passed on %q sockets, and not one", fds)
	}
	closeOnExec(firstFD)
	f := os.NewFile(firstFD, "socket of systemd")
	defer f.Close() // FileListener has a copy
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("what systemd has passed on is no socket that listens: %w", err)
	}
	return l, nil
}

// Notify reports a state to the supervisor: "READY=1", "STOPPING=1". It does nothing if
// no supervisor wants to know.
func Notify(state string) error {
	path := os.Getenv("NOTIFY_SOCKET")
	if path == "" {
		return nil
	}
	conn, err := net.DialUnix("unixgram", nil, &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		return fmt.Errorf("the supervisor cannot be told %q: %w", state, err)
	}
	defer conn.Close()
	if _, err := conn.Write([]byte(state)); err != nil {
		return fmt.Errorf("the supervisor cannot be told %q: %w", state, err)
	}
	return nil
}
