package testserver

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

// startTimeout bounds a server's start. Many may start at once on a small machine.
const startTimeout = 90 * time.Second

// Process is one server, which can be killed, frozen and started again. Its methods fail
// the test that started it, so call them on that test's goroutine.
type Process struct {
	t     TB
	path  string
	args  []string
	env   []string // in addition to that of this process
	dir   string
	attr  *syscall.SysProcAttr // nil for childAttr's
	ready func(pid int) error  // repeated until it returns nil

	mu      sync.Mutex
	staller *staller // nil unless the disk can be stalled
	cmd     *exec.Cmd
	done    chan struct{} // closed when cmd was reaped
}

// start starts the process and waits until it is ready.
func (p *Process) start() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	log, err := os.OpenFile(p.log(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()

	cmd := exec.Command(p.path, p.args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	if m := p.Machine(); m != nil && m.clock != nil {
		cmd.Env = append(cmd.Env, m.clock.env...)
	}
	cmd.Stdout, cmd.Stderr = log, log
	if cmd.SysProcAttr = p.attr; p.attr == nil {
		cmd.SysProcAttr = childAttr()
	}
	run := startOnLastingThread
	if p.staller == nil && stalls(p.t) {
		if p.staller, err = newStaller(); err != nil {
			return err
		}
		p.t.Cleanup(p.staller.close) // after Kill
	}
	if p.staller != nil {
		run = p.staller.start
	}
	if err := run(cmd); err != nil {
		return err
	}
	done := make(chan struct{})
	go func() {
		_ = cmd.Wait() // its log shows how it ended
		close(done)
	}()
	p.cmd, p.done = cmd, done

	deadline := time.After(startTimeout)
	for {
		notReady := p.ready(cmd.Process.Pid)
		if notReady == nil {
			return nil
		}
		select {
		case <-done:
			return fmt.Errorf("%w:\n%s", errExited, p.tail())
		case <-deadline:
			p.kill()
			return fmt.Errorf("%s was not ready after %v: %w\n%s", filepath.Base(p.path), startTimeout, notReady, p.tail())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// errExited says that a server ended during its start, perhaps because another program
// took its port.
var errExited = errors.New("the server ended while it started")

func (p *Process) log() string { return filepath.Join(p.dir, "server.log") }

// tail returns the last lines that the server printed.
func (p *Process) tail() string {
	b, _ := os.ReadFile(p.log()) // nothing to show if it cannot be read
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-15):], "\n")
}

// Pid returns the process id of the present or the last run.
func (p *Process) Pid() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cmd.Process.Pid
}

// Kill ends the server with SIGKILL, a crash, and returns when it is gone. The server may
// be frozen or gone already.
func (p *Process) Kill() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.kill()
}

func (p *Process) kill() {
	if p.cmd == nil {
		return
	}
	_ = p.cmd.Process.Kill() // fails only if it has ended already
	<-p.done
}

// Stop freezes the server with SIGSTOP: its connections stay open, and nothing answers.
func (p *Process) Stop() {
	p.t.Helper()
	p.signal("freeze", Freeze)
}

func (p *Process) Cont() {
	p.t.Helper()
	p.signal("thaw", Thaw)
}

func (p *Process) signal(what string, send func(*os.Process) error) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := send(p.cmd.Process); err != nil {
		p.t.Fatalf("%s the server: %v", what, err)
	}
}

// Restart ends the server as Kill does, and starts it again with the same port, directory
// and arguments.
func (p *Process) Restart() {
	p.t.Helper()
	p.Kill()
	if err := p.start(); err != nil {
		p.t.Fatalf("restart: %v", err)
	}
}

// starter hands commands to the one thread that starts all children. The kernel kills a
// child with SIGKILL when the *thread* that started it ends. Go may end every thread
// except one that a goroutine keeps.
var starter = sync.OnceValue(func() chan<- func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		leaveIPC()
		for f := range work {
			f()
		}
	}()
	return work
})

// Start starts a command of a test. On Linux it ends with this process, in whatever way.
func Start(cmd *exec.Cmd) error {
	cmd.SysProcAttr = childAttr()
	return startOnLastingThread(cmd)
}

func startOnLastingThread(cmd *exec.Cmd) error {
	started := make(chan error)
	starter() <- func() { started <- cmd.Start() }
	return <-started
}

// freshDir makes a directory that is removed with the test.
func freshDir(t TB) string {
	t.Helper()
	root, err := rootDir()
	if err != nil {
		t.Fatalf("make a directory for servers: %v", err)
	}
	dir, err := os.MkdirTemp(root.path, "")
	if err != nil {
		t.Fatalf("make a directory for a server: %v", err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) }) // otherwise it is removed with the root
	if s, ok := t.(*Site); ok {
		s.settle(dir)
	}
	return dir
}

// Folder makes a directory on the common disk. It is removed with the site, or when this
// process ends, in whatever way.
func (s *Site) Folder() string {
	root, err := rootDir()
	if err != nil {
		s.Fatalf("make a directory: %v", err)
	}
	dir, err := os.MkdirTemp(root.path, "")
	if err != nil {
		s.Fatalf("make a directory: %v", err)
	}
	s.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// root is the directory of all servers of this process. It is removed when the process
// ends, in whatever way: a shell waits for the end of a pipe whose other end only this
// process has.
type root struct {
	path string
	pipe *os.File
}

var rootDir = sync.OnceValues(func() (root, error) {
	path, err := os.MkdirTemp("", "baton-testserver-")
	if err != nil {
		return root{}, err
	}
	r, w, err := os.Pipe()
	if err != nil {
		return root{}, err
	}
	defer r.Close()
	// A grandchild, such as one that initializes a MariaDB, may still write.
	remover := exec.Command("sh", "-c", `read -r _; umount -l "$1"/* 2>/dev/null
i=0; until rm -rf "$1" 2>/dev/null || [ $i = 60 ]; do i=$((i + 1)); sleep 1; done`, "sh", path)
	remover.Stdin = r
	remover.SysProcAttr = removerAttr()
	_ = remover.Start() // without a shell the directory stays
	return root{path, w}, nil
})

var ports struct {
	sync.Mutex
	taken map[int]bool
}

// freePort returns a free port that no process gave to another server. It lies below the
// range from which the kernel takes ports of outgoing connections, so that it is free
// when a server restarts.
func freePort() (int, error) {
	ports.Lock()
	defer ports.Unlock()
	for range 1000 {
		port := 12_000 + rand.IntN(20_000)
		if ports.taken[port] {
			continue
		}
		l, err := net.Listen("tcp", addr(port))
		if err != nil {
			continue
		}
		_ = l.Close() // nothing was accepted
		if !keepPort(port) {
			continue
		}
		if ports.taken == nil {
			ports.taken = make(map[int]bool)
		}
		ports.taken[port] = true
		return port, nil
	}
	return 0, errors.New("no free port between 12000 and 32000")
}

func addr(port int) string { return "127.0.0.1:" + strconv.Itoa(port) }

// FreeAddr returns a free address of 127.0.0.1. This process never gets it again.
func FreeAddr(t TB) string {
	t.Helper()
	port, err := freePort()
	if err != nil {
		t.Fatalf("%v", err)
	}
	return addr(port)
}
