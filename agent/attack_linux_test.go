package agent

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

// Each case is an attack by a process of the host on an agent and its clients. Another
// client has the lock "k", and has it still when the attack is over.
func TestAttacks(t *testing.T) {
	t.Parallel()
	cfg := Config{MaxSessions: 40, MaxUserSessions: 30, MaxLocks: 50, MaxUserLocks: 70}
	for _, c := range []struct {
		name   string
		attack func(*testing.T, *host)
	}{
		{"a browser speaks HTTP to the socket", func(t *testing.T, h *host) {
			c := h.connect()
			c.send("POST / HTTP/1.1\r\nHost: localhost\r\n\r\n" + `{"id":1,"do":"lock","key":"x"}`)
			ends(t, c, "bad")
		}},
		{"a line that does not end", func(t *testing.T, h *host) {
			c := h.connect()
			go func() { _, _ = c.conn.Write([]byte(strings.Repeat(`{"id":1,`, 1<<20))) }()
			ends(t, c, "bad")
		}},
		{"a field that is there twice hides another", func(t *testing.T, h *host) {
			h.connect().refused("bad", `{"id":1,"do":"lock","key":"harmless","key":"k"}`)
		}},
		{"bytes that are no UTF-8 in a key", func(t *testing.T, h *host) {
			c := h.connect()
			c.send("{\"id\":1,\"do\":\"lock\",\"key\":\"k\xff\"}")
			ends(t, c, "bad")
		}},
		{"control characters in a key, for the terminals of those who list it", func(t *testing.T, h *host) {
			h.connect().refused("bad", `{"id":1,"do":"lock","key":"\u001b[2J"}`)
		}},
		{"a key that looks like another is another", func(t *testing.T, h *host) {
			c := h.connect()
			for i, key := range []string{"K", "k ", "./k", "x/../k", "%6b", "к"} {
				c.must(`{"id":%d,"do":"lock","key":%q,"wait_ms":0}`, i+1, key)
			}
			c.refused("held", `{"id":9,"do":"lock","key":"\u006b","wait_ms":0}`)
		}},
		{"another session's lock is unlocked by its number", func(t *testing.T, h *host) {
			c := h.connect()
			for id := 1; id < 5; id++ {
				c.refused("bad", `{"id":%d,"do":"unlock","lock":%d}`, 100+id, id)
				c.refused("lost", `{"id":%d,"do":"check","lock":%d}`, 200+id, id)
			}
		}},
		{"one session takes all keys", func(t *testing.T, h *host) {
			c := h.connect()
			got := 0
			for i := range 100 {
				if c.ask(`{"id":%d,"do":"lock","key":"squat/%d","wait_ms":0}`, i+1, i).OK {
					got++
				}
			}
			if got != cfg.MaxLocks {
				t.Errorf("it has %d keys", got)
			}
			other := h.connect()
			var many []string
			for i := range 60 { // in one request, too
				many = append(many, fmt.Sprintf(`"all/%d"`, i))
			}
			other.refused("busy", `{"id":200,"do":"lock","keys":[%s]}`, strings.Join(many, ","))
			for i := range 100 {
				if other.ask(`{"id":%d,"do":"lock","key":"more/%d","wait_ms":0}`, i+1, i).OK {
					got++
				}
			}
			if got != cfg.MaxUserLocks-1 { // one is that of the bystander
				t.Errorf("the user has %d keys", got)
			}
		}},
		{"a flood of requests to wait, in one session", func(t *testing.T, h *host) {
			c := h.connect()
			for i := range 1000 {
				c.send(`{"id":%d,"do":"lock","key":"flood/%d","mode":"shared"}`, i+1, i%7)
			}
			busy := 0
			for range 1000 {
				if c.next().Error != "" {
					busy++
				}
			}
			if busy != 1000-7 { // the others have a key each
				t.Errorf("%d were refused", busy)
			}
		}},
		{"a flood of connections", func(t *testing.T, h *host) {
			var open []net.Conn
			busy := 0
			for range 100 {
				c := h.connectRaw()
				open = append(open, c.conn)
				if r := c.next(); r.Error == "busy" {
					busy++
				}
			}
			if want := 100 - (cfg.MaxUserSessions - 1); busy != want {
				t.Errorf("%d were refused, want %d", busy, want)
			}
			for _, c := range open {
				c.Close()
			}
			h.eventually("a session is free again", func() bool {
				c := h.connectRaw()
				defer c.conn.Close()
				return c.next().OK
			})
		}},
		{"a client that never reads", func(t *testing.T, h *host) {
			c := h.dial()
			defer c.Close()
			if _, err := fmt.Fprintln(c, `{"id":1,"do":"lock","key":"deaf"}`); err != nil {
				t.Fatal(err)
			}
			began := time.Now()
			for { // until the agent does not read any more, because it cannot write
				_ = c.SetWriteDeadline(time.Now().Add(patience))
				if _, err := c.Write([]byte(strings.Repeat(`{"id":2,"do":"who"}`+"\n", 100))); err != nil {
					break
				}
			}
			h.connect().must(`{"id":1,"do":"lock","key":"deaf","wait_ms":10000}`)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it was cut off after %v", took)
			}
		}},
		{"a client that reads slowly does not hold up others", func(t *testing.T, h *host) {
			c := h.dial()
			defer c.Close()
			_, _ = c.Write([]byte(strings.Repeat(`{"id":2,"do":"who"}`+"\n", 100)))
			other := h.connect()
			began := time.Now()
			for i := range 20 {
				other.must(`{"id":%d,"do":"ping"}`, i+1)
			}
			if took := time.Since(began); took > writeTimeout {
				t.Errorf("20 pings took %v", took)
			}
		}},
		{"a client that sends after it was told to go keeps its locks no longer", func(t *testing.T, h *host) {
			c := h.connect()
			c.must(`{"id":1,"do":"lock","key":"gone"}`)
			began := time.Now()
			c.send("garbage")
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				for {
					select {
					case <-stop:
						return
					default:
						if _, err := c.conn.Write([]byte(`{"id":2,"do":"ping"}` + "\n")); err != nil {
							return
						}
					}
				}
			}()
			h.connect().must(`{"id":1,"do":"lock","key":"gone","wait_ms":10000}`)
			if took := time.Since(began); took > 5*time.Second {
				t.Errorf("the lock was free after %v", took)
			}
		}},
		{"a time that overflows", func(t *testing.T, h *host) {
			c := h.connect()
			for i, ms := range []string{"9223372036854775807", "31622400001", "1e300", "-1", "0.5"} {
				c.refused("bad", `{"id":%d,"do":"lock","key":"x","wait_ms":%s}`, i+1, ms)
				c.refused("bad", `{"id":%d,"do":"lock","key":"x","max_hold_ms":%s}`, i+11, ms)
			}
			c.must(`{"id":30,"do":"lock","key":"x","wait_ms":31622400000,"max_hold_ms":31622400000}`)
		}},
		{"a name that is made of what a terminal obeys", func(t *testing.T, h *host) {
			before, err := os.ReadFile("/proc/self/comm")
			if err != nil {
				t.Fatal(err)
			}
			defer os.WriteFile("/proc/self/comm", before, 0) //nolint:errcheck // for the other tests
			if err := os.WriteFile("/proc/self/comm", []byte("\x1b[2J\u202e"), 0); err != nil {
				t.Fatal(err)
			}
			c := h.connect()
			r := c.refused("held", `{"id":1,"do":"lock","key":"k","wait_ms":0}`)
			for _, text := range []string{r.Message, c.must(`{"id":2,"do":"who"}`).Locks[0].Program} {
				if strings.ContainsAny(text, "\x1b\u202e") || !strings.Contains(text, `\x1b[2J`) {
					t.Errorf("%q", text)
				}
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			h, _ := newSocket(t, cfg)
			bystander := h.connect()
			bystander.must(`{"id":1,"do":"lock","key":"k"}`)
			c.attack(t, h)
			bystander.must(`{"id":2,"do":"check","lock":1}`)
			bystander.must(`{"id":3,"do":"unlock","lock":1}`)
		})
	}
}

// An answer that a client does not read does not put off the end of its session.
func TestEndOfAClientThatDoesNotRead(t *testing.T) {
	t.Parallel()
	h, _ := newSocket(t, Config{})
	deaf := h.dial()
	defer deaf.Close()
	for { // until the agent does not read any more, because it cannot write
		_ = deaf.SetWriteDeadline(time.Now().Add(50 * time.Millisecond))
		if _, err := deaf.Write([]byte(strings.Repeat(`{"id":2,"do":"who"}`+"\n", 100))); err != nil {
			break
		}
	}
	began := time.Now()
	h.stop()
	if err := <-h.ended; err != nil || time.Since(began) >= writeTimeout {
		t.Errorf("it stopped after %v: %v", time.Since(began), err)
	}
	h.ended <- nil
}

// ends demands that the agent ends the session with a code.
func ends(t *testing.T, c *client, code string) {
	t.Helper()
	if last := c.over(); last.OK || last.Error != code {
		t.Errorf("the session ended with %v, want %s", last, code)
	}
}

func (h *host) eventually(what string, happened func() bool) {
	h.t.Helper()
	for late := time.Now().Add(patience); !happened(); {
		if time.Now().After(late) {
			h.t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// as runs f on a thread that acts as another user. Only root can do that: as reports
// whether it did.
func as(t *testing.T, uid int, f func()) bool {
	t.Helper()
	if os.Geteuid() != 0 {
		return false
	}
	done := make(chan syscall.Errno)
	go func() {
		runtime.LockOSThread() // and never unlock: the thread ends with the goroutine
		id := uintptr(uid)
		_, _, errno := syscall.RawSyscall(syscall.SYS_SETGROUPS, 0, 0, 0)
		for _, call := range []uintptr{syscall.SYS_SETRESGID, syscall.SYS_SETRESUID} {
			if errno == 0 {
				_, _, errno = syscall.RawSyscall(call, id, id, id)
			}
		}
		if errno == 0 {
			f()
		}
		done <- errno
	}()
	if errno := <-done; errno != 0 {
		t.Fatalf("acting as user %d: %v", uid, errno)
	}
	return true
}

// connectHere connects on this very thread, which the net package would not.
func connectHere(path string) (net.Conn, error) {
	fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM|syscall.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), path)
	defer file.Close()
	if err := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path}); err != nil {
		return nil, err
	}
	return net.FileConn(file)
}

const nobody = 65534

// The mode of the socket keeps other users out: not even a connection is made.
func TestModeOfTheSocket(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("/tmp", "baton-agent-") // other users can reach it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chmod(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		mode fs.FileMode
		want bool
	}{{0o660, false}, {0o666, true}} {
		path := filepath.Join(dir, fmt.Sprintf("%o", c.mode))
		l, err := Listen(path, c.mode)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != c.mode {
			t.Errorf("%v, %v, want %v", info.Mode(), err, c.mode)
		}
		var got error
		other := as(t, nobody, func() {
			conn, err := connectHere(path)
			if got = err; err == nil {
				conn.Close()
			}
		})
		switch {
		case !other:
			t.Log("only root can try it as another user; the mode is right")
		case c.want && got != nil, !c.want && !errors.Is(got, syscall.EACCES):
			t.Errorf("mode %o: another user gets %v", c.mode, got)
		}
	}
}

// A user who may connect by the mode and is not in Users is refused, whatever it sends.
func TestUsers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		users []uint32
		want  bool
	}{{nil, true}, {[]uint32{uint32(os.Getuid())}, true}, {[]uint32{}, false}, {[]uint32{4_000_000_000, 7}, false}} {
		h, _ := newSocket(t, Config{Users: c.users})
		conn := h.connectRaw()
		if r := conn.next(); r.OK != c.want || !c.want && r.Error != "denied" {
			t.Errorf("users %v: %v", c.users, r)
		}
		if !c.want {
			conn.over()
		}
	}
	h, path := newSocket(t, Config{Users: []uint32{uint32(os.Getuid())}})
	for name, mode := range map[string]fs.FileMode{filepath.Dir(path): 0o755, path: 0o666} {
		if err := os.Chmod(name, mode); err != nil {
			t.Fatal(err)
		}
	}
	var got []byte
	var failed error
	if as(t, nobody, func() {
		conn, err := connectHere(path)
		if failed = err; err == nil {
			got, failed = io.ReadAll(conn)
			conn.Close()
		}
	}) && (failed != nil || !strings.Contains(string(got), `"error":"denied"`)) {
		t.Errorf("another user got %q, %v", got, failed)
	}
	h.connect()
}

// Listen refuses a path that is another's, and one where another can take its place.
func TestListenRefuses(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	refused := func(path, want string) {
		t.Helper()
		l, err := Listen(path, 0o600)
		if err == nil {
			l.Close()
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}

	// A socket without a file has no mode, and all users of the machine could connect.
	for _, abstract := range []string{"@baton-test", "\x00baton-test", ""} {
		refused(abstract, "would be abstract")
	}

	// Another agent lives, also one that does not accept.
	first, err := Listen(at("a"), 0o600)
	if err != nil {
		t.Fatal(err)
	}
	refused(at("a"), "another agent or server lives")
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(at("a")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after Close: %v", err)
	}

	// It has died, without a chance to remove its socket.
	dead, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: at("a")})
	if err != nil {
		t.Fatal(err)
	}
	dead.SetUnlinkOnClose(false)
	dead.Close()
	second, err := Listen(at("a"), 0o600)
	if err != nil {
		t.Fatalf("a dead socket: %v", err)
	}
	second.Close()

	// Another program listens there.
	foreign, err := net.Listen("unix", at("b"))
	if err != nil {
		t.Fatal(err)
	}
	defer foreign.Close()
	refused(at("b"), "another program listens")

	if err := os.WriteFile(at("c"), []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	refused(at("c"), "it is no socket")
	if err := os.Symlink(at("c"), at("d.lock")); err != nil {
		t.Fatal(err)
	}
	refused(at("d"), "lock file")
	refused(at("none/a"), "the directory of the socket")
	refused(at(strings.Repeat("x", 200)), "at most 103")

	if err := os.Mkdir(at("open"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(at("open"), 0o777); err != nil {
		t.Fatal(err)
	}
	refused(at("open/a"), "other users can write to the directory")
	if err := os.Chmod(at("open"), 0o777|fs.ModeSticky); err != nil { // as /tmp
		t.Fatal(err)
	}
	refused(at("open/a"), "other users can write to the directory")
	// In a directory of our own there nobody can replace it.
	if err := os.MkdirAll(at("open/own/in"), 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := Listen(at("open/own/in/a"), 0o600)
	if err != nil {
		t.Error(err)
	} else {
		l.Close()
	}
	if err := os.Symlink(at("open/own"), at("open/link")); err != nil {
		t.Fatal(err)
	}
	if l, err = Listen(at("open/link/in/a"), 0o600); err != nil {
		t.Error(err)
	} else {
		l.Close()
	}
	if os.Geteuid() == 0 {
		if err := os.Lchown(at("open/link"), nobody, -1); err != nil {
			t.Fatal(err)
		}
		refused(at("open/link/in/a"), "belongs to user")
		if err := os.Chown(at("open/own"), nobody, -1); err != nil {
			t.Fatal(err)
		}
		refused(at("open/own/in/a"), "belongs to user")
		if err := os.Chown(at("open/own"), 0, -1); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Chmod(at("open"), 0o777); err != nil {
		t.Fatal(err)
	}
	refused(at("open/own/in/a"), "other users can write to the directory")
	if os.Geteuid() == 0 {
		if err := os.Chmod(at("open"), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Chown(at("open"), nobody, -1); err != nil {
			t.Fatal(err)
		}
		refused(at("open/a"), "belongs to user")
	}
}

// Of agents that start at the same moment at the socket of one that has died, one gets it.
func TestOneOfManyGetsTheSocket(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "a")
	for range 20 {
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: path})
		if err != nil {
			t.Fatal(err)
		}
		dead.SetUnlinkOnClose(false)
		dead.Close()
		var wg sync.WaitGroup
		won := make(chan net.Listener, 8)
		for range cap(won) {
			wg.Go(func() {
				if l, err := Listen(path, 0o600); err == nil {
					won <- l
				} else if !strings.Contains(err.Error(), "another agent or server lives") {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		close(won)
		n := 0
		for l := range won {
			n++
			conn, err := net.Dial("unix", path)
			if err != nil {
				t.Errorf("no agent listens: %v", err)
			} else {
				conn.Close()
			}
			l.Close()
		}
		if n != 1 {
			t.Fatalf("%d agents have the socket", n)
		}
	}
}
