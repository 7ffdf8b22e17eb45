package main

import (
	"bufio"
	"context"
	"encoding/json"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// awayStore is the address of a store that answers nothing yet. tried is closed when a program
// has tried to reach it.
func awayStore(t *testing.T) (proxy *faultproxy.Proxy, tried <-chan struct{}) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	first := make(chan struct{})
	go func() {
		for n := 0; ; n++ {
			c, err := l.Accept()
			if err != nil {
				return
			}
			c.Close()
			if n == 0 {
				close(first)
			}
		}
	}()
	return faultproxy.New(t, l.Addr().String()), first
}

// The wait that a command grants counts for the store as for the lock.
func TestWaitCoversTheStore(t *testing.T) {
	t.Parallel()
	redis := testserver.Redis(t)
	for _, args := range []string{
		"run -w 1m k -- true", "run k -- true", "once --no-replay -w 1m k -- true", "elect -w 1m k -- true",
		"lock -w 1m handed", "limit --rate 5/1m -w 1m k", "limit --rate 5/1m -w forever k",
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			proxy, tried := awayStore(t)
			cmd := exec.Command("baton", append([]string{"--store", "redis://" + proxy.Addr}, strings.Fields(args)...)...)
			cmd.Dir = t.TempDir()
			errs := &messages{more: make(chan struct{})}
			cmd.Stderr = errs
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case <-tried:
			case err := <-ended:
				t.Fatalf("%v: %s", err, errs)
			}
			proxy.Retarget(redis.Addr)
			select {
			case err := <-ended:
				if err != nil {
					t.Errorf("%v: %s", err, errs)
				}
			case <-time.After(patience):
				_ = cmd.Process.Kill()
				t.Errorf("it has not ended: %s", errs)
			}
		})
	}
	for args, want := range map[string]int{
		"run -n k -- true":                69,
		"limit --rate 5/1m k":             69,
		"run -w 1s k -- true":             69,
		"--verbose elect -w 1s k -- true": 69,
	} {
		t.Run(args, func(t *testing.T) {
			t.Parallel()
			proxy, _ := awayStore(t)
			began := time.Now()
			cmd := exec.Command("baton", append([]string{"--store", "redis://" + proxy.Addr + "?connect-timeout=1s"}, strings.Fields(args)...)...)
			cmd.Dir = t.TempDir()
			out, _ := cmd.CombinedOutput()
			took := time.Since(began)
			if cmd.ProcessState.ExitCode() != want {
				t.Errorf("%v, want %d: %s", cmd.ProcessState, want, out)
			}
			if waits := strings.Contains(args, "-w"); waits != (took >= time.Second) || took > patience {
				t.Errorf("it took %v: %s", took, out)
			}
		})
	}
}

// A signal ends the wait for the store.
func TestSignalEndsTheWaitForTheStore(t *testing.T) {
	t.Parallel()
	proxy, tried := awayStore(t)
	cmd := exec.Command("baton", "--store", "redis://"+proxy.Addr, "run", "-w", "1h", "k", "--", "true")
	errs := &messages{more: make(chan struct{})}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	<-tried
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	if code := cmd.ProcessState.ExitCode(); code != exitSignal+int(syscall.SIGTERM) {
		t.Errorf("%v: %s", cmd.ProcessState, errs)
	}
}

// An agent and a server start without their store, are ready when it is there, and find the
// server to which its address leads later.
func TestServingOutlivesTheStore(t *testing.T) {
	t.Parallel()
	old, successor := testserver.Redis(t), testserver.Redis(t)
	dir := t.TempDir()
	start := func(proxy *faultproxy.Proxy, args ...string) *messages {
		t.Helper()
		errs := &messages{more: make(chan struct{})}
		cmd := exec.Command("baton", append([]string{"--store", "redis://" + proxy.Addr}, args...)...)
		cmd.Dir, cmd.Stderr = dir, errs
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
			if t.Failed() {
				t.Logf("%s says:\n%s", args[0], errs)
			}
		})
		errs.await(t, `trying again`)
		return errs
	}
	forServer, _ := awayStore(t)
	s := &servedProcess{t: t, addr: testserver.FreeAddr(t), http: http.DefaultClient}
	s.url = "http://" + s.addr
	serveSays := start(forServer, "serve", "--listen", s.addr)
	forAgent, _ := awayStore(t)
	socket := filepath.Join(dir, "socket")
	agentSays := start(forAgent, "agent", "--socket", socket)

	ask := func(method, path, body string) answer {
		t.Helper()
		r, err := http.NewRequest(method, s.url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		return s.do(r)
	}
	ready := func() int { return ask(http.MethodGet, "/readyz", "").Status }
	health := func() string { return ask(http.MethodPost, "/grpc.health.v1.Health/Check", "{}").Text }
	if alive := ask(http.MethodGet, "/healthz", "").Status; alive != 200 || ready() != 503 || strings.Contains(health(), "SERVING") {
		t.Errorf("without a store: /healthz %d, /readyz %d, health %s", alive, ready(), health())
	}
	session := func() net.Conn {
		t.Helper()
		c, err := net.Dial("unix", socket)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		if err := c.SetDeadline(time.Now().Add(patience)); err != nil {
			t.Fatal(err)
		}
		return c
	}
	early := session() // before the agent has its store
	agentLocks := func(c net.Conn, key string) bool {
		t.Helper()
		if _, err := c.Write([]byte(`{"id":1,"do":"lock","key":"` + key + `"}` + "\n")); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(c)
		for lines.Scan() {
			var a struct {
				ID int
				OK bool
			}
			if err := json.Unmarshal(lines.Bytes(), &a); err != nil {
				t.Fatal(err)
			}
			if a.ID == 1 {
				return a.OK
			}
		}
		t.Fatalf("the agent has closed the session: %v", lines.Err())
		return false
	}
	forServer.Retarget(old.Addr)
	forAgent.Retarget(old.Addr)
	serveSays.await(t, `listens at`)
	agentSays.await(t, `listens at`)
	serverLocks := func(key string) bool {
		return s.call("", "Locks/Acquire", `{"key":"`+key+`"}`).State == "HELD"
	}
	if !agentLocks(early, "a") || !serverLocks("s") || ready() != 200 || !strings.Contains(health(), `"SERVING_STATUS_SERVING"`) {
		t.Errorf("with its store: /readyz %d, health %s", ready(), health())
	}

	forServer.Retarget(successor.Addr)
	forAgent.Retarget(successor.Addr)
	if _, err := old.Do("REPLICAOF", "127.0.0.1", "1"); err != nil {
		t.Fatal(err)
	}
	// What was held is lost, and its session with it.
	for what, works := range map[string]func() bool{
		"the agent":  func() bool { return agentLocks(session(), "a2") },
		"the server": func() bool { return serverLocks("s2") },
		"/readyz":    func() bool { return ready() == 200 },
	} {
		for began := time.Now(); !works(); <-time.After(50 * time.Millisecond) { // as a client that tries again
			if time.Since(began) > patience {
				t.Fatalf("%s has not found the new server", what)
			}
		}
	}
}

// A server that takes connections and does not answer keeps a command for no longer than
// its wait, and a little.
func TestWaitEndsATryToOpen(t *testing.T) {
	t.Parallel()
	wait, began := 50*time.Millisecond, time.Now()
	_, err := again(t.Context(), &app{stderr: os.Stderr}, openWait{tries: true, wait: &wait}, time.Millisecond, func(ctx context.Context) (driver.Store, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	})
	if took := time.Since(began); err == nil || took > openTimeout/2 {
		t.Errorf("after %v: %v", took, err)
	}
}
