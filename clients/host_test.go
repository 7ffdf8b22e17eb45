//go:build unix

// Package clients tests the clients of the agent in other languages. Programs in each language get the
// same orders, and must behave alike, with agents that are processes of their own, over Redis and
// SQLite.
package clients

import (
	"bufio"
	"context"
	"database/sql"
	"encoding/base64"
	"encoding/json"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	_ "modernc.org/sqlite"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

const patience = time.Minute

// ttl is long enough for the many processes of the long tests.
var ttl = map[bool]time.Duration{false: 4 * time.Second, true: 8 * time.Second}[os.Getenv("BATON_LONG") == "1"]

// built is a folder for what is compiled once for all tests.
var built string

func TestMain(m *testing.M) {
	var err error
	if built, err = os.MkdirTemp("", "clients-"); err != nil {
		panic(err)
	}
	flag.Parse()
	if f := flag.Lookup("test.parallel"); os.Getenv("BATON_LONG") != "1" && len(f.Value.String()) == 1 {
		_ = f.Value.Set("16") // they wait for most of their time, those in long tests, with JVMs, do not
	}
	code := m.Run()
	_ = os.RemoveAll(built)
	os.Exit(code)
}

// compile runs a compiler once.
func compile(name string, args ...string) func() error {
	return sync.OnceValue(func() error {
		for i, arg := range args {
			args[i] = strings.ReplaceAll(arg, "BUILT", built)
		}
		if out, err := exec.Command(name, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("%s %v: %w\n%s", name, args, err, out)
		}
		return nil
	})
}

var buildBaton = compile("go", "build", "-o", "BUILT/baton", "../cmd/baton")

// baton is the command.
func baton(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	if err := buildBaton(); err != nil {
		t.Fatal(err)
	}
	return exec.Command(filepath.Join(built, "baton"), args...)
}

// A site says where the locks are.
type site struct {
	name string
	make func(t *testing.T) store
}

// A store is shared by several agents.
type store struct {
	url    string
	behind string                         // the same, for an agent that is to lose it
	stop   func(*testing.T) (heal func()) // makes behind stop answering
	shared *host                          // for all rows about one client at a time
}

var sites = []site{
	{"redis", func(t *testing.T) store {
		server := testserver.SharedRedis(t)
		proxy := faultproxy.New(t, server.Addr)
		prefix := "?prefix=" + strings.ReplaceAll(t.Name(), "/", "-") + ":"
		return store{url: "redis://" + server.Addr + prefix, behind: "redis://" + proxy.Addr + prefix, stop: func(*testing.T) func() {
			proxy.Hold(faultproxy.ToServer)
			return proxy.Heal
		}}
	}},
	{"sqlite", func(t *testing.T) store {
		file := filepath.Join(folder(t), "baton.db")
		return store{url: "sqlite:" + file, behind: "sqlite:" + file, stop: func(t *testing.T) func() {
			db, err := sql.Open("sqlite", file)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = db.Close() })
			db.SetMaxOpenConns(1)
			for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
				if _, err = db.Exec("BEGIN IMMEDIATE"); err == nil {
					break
				}
				if time.Now().After(late) {
					t.Fatal(err)
				}
			}
			return func() {
				if _, err := db.Exec("ROLLBACK"); err != nil {
					t.Error(err)
				}
			}
		}}
	}},
}

// wanted skips stores that only the long tests try.
func (s site) wanted(t *testing.T) {
	t.Helper()
	if s.name != sites[0].name {
		testserver.Long(t)
	}
}

// folder makes one whose path is short enough for sockets, which those of t.TempDir are
// not.
func folder(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "clients-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// A host has an agent, a process of its own.
type host struct {
	t      *testing.T
	store  string
	dir    string
	socket string
	agent  *exec.Cmd
	ended  chan struct{}

	servers []*exec.Cmd // over the same store, once a client needs them
	urls    []string
}

// at is the address of the locks for clients of l: the agent, or two servers with one secret.
func (h *host) at(l language) string {
	h.t.Helper()
	if !l.http {
		return h.socket
	}
	secret := filepath.Join(h.dir, "secret")
	if len(h.urls) == 0 {
		if err := os.WriteFile(secret, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
			h.t.Fatal(err)
		}
	}
	for len(h.urls) < 2 {
		addr := testserver.FreeAddr(h.t)
		h.servers, h.urls = append(h.servers, nil), append(h.urls, "http://"+addr)
		h.serve(len(h.urls) - 1)
	}
	return strings.Join(h.urls, ",")
}

// serve starts a server, for the first time or again.
func (h *host) serve(i int) {
	h.t.Helper()
	addr := strings.TrimPrefix(h.urls[i], "http://")
	server := baton(h.t, "serve", "--store", h.store, "--listen", addr, "--secret-file", filepath.Join(h.dir, "secret"), "--rules", "testdata/rules.yaml")
	server.Stderr = h.t.Output()
	if err := testserver.Start(server); err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
	listens(h.t, "tcp", addr)
	h.servers[i] = server
}

func newHost(t *testing.T, url string) *host {
	t.Helper()
	h := &host{t: t, store: url, dir: folder(t)}
	h.socket = filepath.Join(h.dir, "agent.sock")
	h.start()
	return h
}

// start starts the agent.
func (h *host) start() {
	h.t.Helper()
	agent, ended := baton(h.t, "agent", "--store", h.store, "--socket", h.socket, "--ttl", ttl.String(), "--rules", "testdata/rules.yaml"), make(chan struct{})
	h.agent, h.ended = agent, ended
	agent.Stderr = h.t.Output()
	if err := testserver.Start(agent); err != nil {
		h.t.Fatal(err)
	}
	go func() {
		_ = agent.Wait() // it is killed
		close(ended)
	}()
	h.t.Cleanup(func() {
		_ = agent.Process.Kill()
		<-ended
	})
	listens(h.t, "unix", h.socket)
}

// listens returns when an address has a listener.
func listens(t *testing.T, network, addr string) {
	t.Helper()
	for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if conn, err := net.Dial(network, addr); err == nil {
			_ = conn.Close()
			return
		} else if time.Now().After(late) {
			t.Fatal(err)
		}
	}
}

func (h *host) signal(s syscall.Signal) {
	h.t.Helper()
	if err := h.agent.Process.Signal(s); err != nil {
		h.t.Fatal(err)
	}
}

// freeze stops the agent, and the servers, and returns when they stand still.
func (h *host) freeze() {
	h.t.Helper()
	for _, cmd := range append([]*exec.Cmd{h.agent}, h.servers...) {
		if err := cmd.Process.Signal(syscall.SIGSTOP); err != nil {
			h.t.Fatal(err)
		}
		var status syscall.WaitStatus
		if _, err := syscall.Wait4(cmd.Process.Pid, &status, syscall.WUNTRACED, nil); err != nil || !status.Stopped() {
			h.t.Fatalf("%v does not stop: %v, %v", cmd.Args, err, status)
		}
	}
}

// An other is a client in the tests themselves. What it gets must agree with the clients' answers.
type other struct {
	conn net.Conn
	in   *bufio.Scanner
}

type answer struct {
	OK      bool
	Token   string
	Error   string
	Message string
	Locks   []struct {
		State, Token string
		PID          int
	}
}

func (h *host) other() *other {
	h.t.Helper()
	conn, err := net.Dial("unix", h.socket)
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = conn.Close() })
	o := &other{conn, bufio.NewScanner(conn)}
	if !o.in.Scan() {
		h.t.Fatalf("no greeting: %v", o.in.Err())
	}
	return o
}

func (o *other) ask(format string, args ...any) (a answer, err error) {
	if _, err := fmt.Fprintf(o.conn, format+"\n", args...); err != nil {
		return a, err
	}
	if !o.in.Scan() {
		return a, fmt.Errorf("the agent has gone: %v", o.in.Err())
	}
	return a, json.Unmarshal(o.in.Bytes(), &a)
}

// who returns the holder of key.
func (h *host) who(key string) answer {
	h.t.Helper()
	o := h.other()
	defer o.conn.Close()
	a, err := o.ask(`{"id":1,"do":"who","key":%q}`, key)
	if err != nil || !a.OK {
		h.t.Fatalf("who: %v, %+v", err, a)
	}
	return a
}

// awaitWaiter waits until a client of the agent waits for key.
func (h *host) awaitWaiter(key string) {
	h.t.Helper()
	h.awaitWaiters(key, 1)
}

// awaitWaiters waits until n clients of the agent wait for key.
func (h *host) awaitWaiters(key string, n int) {
	h.t.Helper()
	o := h.other()
	defer o.conn.Close()
	for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		a, err := o.ask(`{"id":1,"do":"who","key":%q}`, key)
		if err != nil {
			h.t.Fatal(err)
		}
		waiting := 0
		for _, lock := range a.Locks {
			if lock.State == "waiting" {
				waiting++
			}
		}
		if waiting >= n {
			return
		}
		if time.Now().After(late) {
			h.t.Fatalf("%d clients wait, not %d", waiting, n)
		}
	}
}

// free fails the test unless key is free at once, long before its TTL.
func (h *host) free(key, why string) {
	h.t.Helper()
	o := h.other()
	defer o.conn.Close()
	a, err := o.ask(`{"id":1,"do":"lock","key":%q,"wait_ms":%d}`, key, (ttl / 2).Milliseconds())
	if err != nil || !a.OK {
		h.t.Errorf("%s: the lock of %q is not free: %v, %+v", why, key, err, a)
	}
}

// A taken is the moment when another process got a lock.
type taken struct {
	at  time.Time
	err error
}

// take waits for key, at this host.
func (h *host) take(key string) <-chan taken {
	h.t.Helper()
	o, got := h.other(), make(chan taken, 1)
	go func() {
		defer o.conn.Close()
		a, err := o.ask(`{"id":1,"do":"lock","key":%q,"wait_ms":%d}`, key, patience.Milliseconds())
		if err == nil && !a.OK {
			err = fmt.Errorf("%+v", a)
		}
		got <- taken{time.Now(), err}
	}()
	return got
}

// A proxy is between the clients and the agent.
type proxy struct {
	socket string
	target string

	mu    sync.Mutex
	conns map[net.Conn]struct{}
	delay atomic.Int64 // of each line to the client, in nanoseconds
	lose  string       // requests with this text reach the agent, the answer to the next one is lost, and the connection
}

// proxied puts a proxy in front of the agent.
func (h *host) proxied() *proxy {
	h.t.Helper()
	p := &proxy{socket: filepath.Join(h.dir, "proxy.sock"), target: h.socket, conns: make(map[net.Conn]struct{})}
	l, err := net.Listen("unix", p.socket)
	if err != nil {
		h.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	h.t.Cleanup(func() {
		cancel()
		_ = l.Close()
		p.cut()
	})
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go p.serve(ctx, conn)
		}
	}()
	return p
}

func (p *proxy) serve(ctx context.Context, client net.Conn) {
	agent, err := new(net.Dialer).DialContext(ctx, "unix", p.target)
	if err != nil {
		_ = client.Close()
		return
	}
	p.mu.Lock()
	p.conns[client], p.conns[agent] = struct{}{}, struct{}{}
	p.mu.Unlock()
	end := func() {
		_ = client.Close()
		_ = agent.Close()
	}
	lost := make(chan struct{})
	go func() {
		defer end()
		for in := bufio.NewScanner(client); in.Scan(); {
			p.mu.Lock()
			if p.lose != "" && strings.Contains(in.Text(), p.lose) {
				p.lose = ""
				close(lost)
			}
			p.mu.Unlock()
			if _, err := fmt.Fprintln(agent, in.Text()); err != nil {
				return
			}
		}
	}()
	defer end()
	for in := bufio.NewScanner(agent); in.Scan(); {
		select {
		case <-lost:
			return
		default:
		}
		time.Sleep(time.Duration(p.delay.Load())) // a slow agent
		if _, err := fmt.Fprintln(client, in.Text()); err != nil {
			return
		}
	}
}

// cut ends all connections.
func (p *proxy) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for conn := range p.conns {
		_ = conn.Close()
	}
	clear(p.conns)
}

// loseAnswer loses the answer to the next request for verb.
func (p *proxy) loseAnswer(verb string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = fmt.Sprintf("%q", verb)
}
