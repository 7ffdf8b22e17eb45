//go:build unix

package systemd

import (
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

func TestListenerIsThatOfThisProcess(t *testing.T) {
	for _, c := range []struct{ pid, fds, want string }{
		{"", "", "no socket to this process"},
		{"1", "1", "no socket to this process"},
		{strconv.Itoa(os.Getpid()), "2", `"2" sockets`},
		{strconv.Itoa(os.Getpid()), "", `"" sockets`},
	} {
		t.Setenv("LISTEN_PID", c.pid)
		t.Setenv("LISTEN_FDS", c.fds)
		if _, err := Listener(); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("pid %q, fds %q: %v", c.pid, c.fds, err)
		}
		if os.Getenv("LISTEN_PID") != "" || os.Getenv("LISTEN_FDS") != "" {
			t.Error("children could take the socket for theirs")
		}
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := Notify("READY=1"); err != nil {
		t.Errorf("without a supervisor: %v", err)
	}
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Net: "unixgram", Name: path})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	if err := Notify("READY=1"); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 100)
	n, err := conn.Read(got)
	if err != nil || string(got[:n]) != "READY=1" {
		t.Errorf("the supervisor was told %q, %v", got[:n], err)
	}
	t.Setenv("NOTIFY_SOCKET", path+".none")
	if err := Notify("READY=1"); err == nil {
		t.Error("a supervisor that is not there was told")
	}
}
