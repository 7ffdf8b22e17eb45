package agent

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// clientEnv makes this test program a client, which asks for the lock "k" at the socket
// that the variable names.
const clientEnv = "BATON_TEST_AGENT"

func TestMain(m *testing.M) {
	if path := os.Getenv(clientEnv); path != "" {
		hold(path)
		return
	}
	os.Exit(m.Run())
}

// hold prints what the agent says, until the session ends.
func hold(path string) {
	conn, err := net.Dial("unix", path)
	if err == nil {
		_, err = fmt.Fprintln(conn, os.Getenv(clientEnv+"_ASKS"))
	}
	if err == nil {
		_, err = io.Copy(os.Stdout, conn)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// newSocket starts an agent at a real socket.
func newSocket(t *testing.T, cfg Config) (h *host, path string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "agent-") // t.TempDir makes paths that are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "agent.sock")
	l, err := Listen(path, 0o660)
	if err != nil {
		t.Fatal(err)
	}
	return newHostAt(t, cfg, l, func() net.Conn {
		conn, err := net.Dial("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		return conn
	}), path
}

// A process is a client of its own.
type process struct {
	*exec.Cmd
	out *bufio.Scanner
}

// start starts a process that sends a line, and reads the greeting.
func start(t *testing.T, path, asks string) *process {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p := &process{Cmd: exec.Command(self)}
	p.Env = append(os.Environ(), clientEnv+"="+path, clientEnv+"_ASKS="+asks)
	p.Stderr = os.Stderr
	out, err := p.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p.out = bufio.NewScanner(out)
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	p.next(t)
	return p
}

func (p *process) next(t *testing.T) (r reply) {
	t.Helper()
	if !p.out.Scan() {
		t.Fatalf("the process has ended: %v", p.out.Err())
	}
	if err := json.Unmarshal(p.out.Bytes(), &r); err != nil {
		t.Fatalf("%q: %v", p.out.Text(), err)
	}
	return r
}

func TestProcessThatIsKilled(t *testing.T) {
	t.Parallel()
	h, path := newSocket(t, Config{})
	for range 5 {
		p := start(t, path, `{"id":1,"do":"lock","key":"k"}`)
		if r := p.next(t); !r.OK {
			t.Fatal(r)
		}
		next := h.connect()
		who := next.must(`{"id":1,"do":"who"}`).Locks
		if len(who) != 1 || who[0].PID != p.Process.Pid || who[0].UID == nil || int(*who[0].UID) != os.Getuid() || who[0].Program == "" {
			t.Errorf("who tells %+v", who)
		}
		if r := next.refused("held", `{"id":2,"do":"lock","key":"k","wait_ms":0}`); !strings.Contains(r.Message, fmt.Sprintf("(pid %d)", p.Process.Pid)) {
			t.Errorf("the message is %q", r.Message)
		}
		next.send(`{"id":3,"do":"lock","key":"k"}`)
		next.must(`{"id":4,"do":"ping"}`) // the request before was read
		killed := time.Now()
		if err := p.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		r := next.next()
		if !r.OK {
			t.Fatal(r)
		}
		t.Logf("free %v after the kill", r.at.Sub(killed))
		next.must(`{"id":5,"do":"unlock","lock":3}`)
	}
}

// A process that is stopped keeps its lock, for as long as MaxHold allows, and is told
// when it goes on.
func TestProcessThatIsStopped(t *testing.T) {
	t.Parallel()
	h, path := newSocket(t, Config{})
	p := start(t, path, `{"id":1,"do":"lock","key":"k","max_hold_ms":3000}`)
	if r := p.next(t); !r.OK {
		t.Fatal(r)
	}
	began := time.Now()
	if err := p.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	next := h.connect()
	next.refused("held", `{"id":1,"do":"lock","key":"k","wait_ms":2000}`) // a TTL
	next.send(`{"id":2,"do":"lock","key":"k"}`)
	if r := next.next(); !r.OK || r.at.Sub(began) < 2900*time.Millisecond {
		t.Errorf("after %v: %v", r.at.Sub(began), r)
	}
	if err := p.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if r := p.next(t); r.Lost != 1 || r.Cause != "overheld" {
		t.Errorf("it was told %v", r)
	}
	if p.out.Scan() {
		t.Errorf("and then %q", p.out.Text())
	}
}

// The end of the stream follows the last line at once: a client need not wait for the
// grace.
func TestEndFollowsTheLoss(t *testing.T) {
	t.Parallel()
	h, _ := newSocket(t, Config{})
	a := h.connect()
	a.must(`{"id":1,"do":"lock","key":"k"}`)
	h.store.Lose("k")
	if last := a.over(); last.Lost != 1 || a.end.Sub(last.at) > grace/2 {
		t.Errorf("the end came %v after %v", a.end.Sub(last.at), last)
	}
}

// Sessions that come and go at any moment leave nothing behind, and never exclude each
// other wrongly.
func TestStorm(t *testing.T) {
	t.Parallel()
	h, path := newSocket(t, Config{})
	var inside [3]atomic.Int64
	var got, lost atomic.Int64
	var wg sync.WaitGroup
	for i := range 24 {
		wg.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 1))
			for range 40 {
				conn, err := net.Dial("unix", path)
				if err != nil {
					t.Error(err)
					return
				}
				in := bufio.NewReader(conn)
				next := func() (r reply, err error) {
					text, err := in.ReadBytes('\n')
					if err == nil {
						err = json.Unmarshal(text, &r)
					}
					return r, err
				}
				_, _ = next()
				key := random.IntN(len(inside))
				request := fmt.Sprintf(`{"id":1,"do":"lock","key":"%d"}`+"\n", key)
				switch random.IntN(6) {
				case 0: // gone before the answer
					_, _ = conn.Write([]byte(request))
				case 1: // and soon after the request was read
					_, _ = conn.Write([]byte(request + `{"id":2,"do":"ping"}` + "\n"))
					_, _ = next()
				case 2: // ends its wait
					_, _ = conn.Write([]byte(request + `{"id":2,"do":"unlock","lock":1}` + "\n"))
					for range 2 {
						_, _ = next()
					}
				default:
					_, _ = conn.Write([]byte(request))
					r, err := next()
					if err != nil || !r.OK {
						lost.Add(1)
						break
					}
					if n := inside[key].Add(1); n != 1 {
						t.Errorf("%d have the lock %d", n, key)
					}
					got.Add(1)
					runtime.Gosched()
					inside[key].Add(-1)
					if random.IntN(2) == 0 {
						_, _ = conn.Write([]byte(`{"id":2,"do":"unlock","lock":1}` + "\n"))
						_, _ = next()
					}
				}
				_ = conn.Close()
			}
		})
	}
	wg.Wait()
	if got.Load() == 0 || lost.Load() != 0 {
		t.Errorf("%d had a lock, %d got an error", got.Load(), lost.Load())
	}
	c := h.connect()
	for key := range inside {
		c.must(`{"id":%d,"do":"lock","key":"%d","wait_ms":10000}`, key+1, key)
	}
}

// The kernel says who the user is.
func TestRolesOfTheKernelsUser(t *testing.T) {
	t.Parallel()
	of := &callers{}
	uid := os.Getuid()
	of.set(t, "uid:"+strconv.Itoa(uid)+" - mine/=lock")
	h, _ := newSocket(t, Config{Caller: func(peer int64) (Caller, error) {
		if peer < 0 {
			return nil, errors.New("the kernel does not tell")
		}
		return of.find(peer)
	}})
	c := h.connect()
	c.must(`{"id":1,"do":"lock","key":"mine/x"}`)
	if r := c.refused("denied", `{"id":2,"do":"lock","key":"yours/x"}`); !strings.Contains(r.Message, "uid:"+strconv.Itoa(uid)) {
		t.Errorf("the message is %q", r.Message)
	}
}
