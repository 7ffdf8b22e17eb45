package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/roles"
)

// A servedProcess is one of baton serve.
type servedProcess struct {
	t    *testing.T
	dir  string
	addr string // host:port
	url  string
	cmd  *exec.Cmd
	errs *messages
	http *http.Client
}

// messages are what a process prints.
type messages struct {
	mu   sync.Mutex
	text bytes.Buffer
	more chan struct{} // closed and replaced when there is more
}

func (m *messages) Write(p []byte) (int, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n, err := m.text.Write(p)
	close(m.more)
	m.more = make(chan struct{})
	return n, err
}

// await waits for a match.
func (m *messages) await(t *testing.T, pattern string) []string {
	t.Helper()
	want := regexp.MustCompile("(?m)" + pattern)
	late := time.After(patience)
	for {
		m.mu.Lock()
		found, more := want.FindStringSubmatch(m.text.String()), m.more
		m.mu.Unlock()
		if found != nil {
			return found
		}
		select {
		case <-more:
		case <-late:
			t.Fatalf("nothing matches %q:\n%s", pattern, m.String())
		}
	}
}

func (m *messages) String() string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.text.String()
}

// startBaton starts a process with a store of its own, which ends with the test.
func startBaton(t *testing.T, dir string, args ...string) (*exec.Cmd, *messages) {
	t.Helper()
	errs := &messages{more: make(chan struct{})}
	cmd := exec.Command("baton", args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "BATON_STORE=sqlite:"+filepath.Join(dir, "locks.db"), "HOME="+dir, "XDG_STATE_HOME="+dir)
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("baton %s says:\n%s", args[0], errs)
		}
	})
	return cmd, errs
}

// startServe starts baton serve, over a store and with an audit of its own.
func startServe(t *testing.T, dir string, flags ...string) *servedProcess {
	t.Helper()
	s := &servedProcess{t: t, dir: dir}
	s.cmd, s.errs = startBaton(t, dir, append([]string{"serve", "--listen", "127.0.0.1:0", "--audit", filepath.Join(dir, "audit")}, flags...)...)
	found := s.errs.await(t, `listens at (https?)://(\S+)$`)
	s.addr, s.url = found[2], found[1]+"://"+found[2]
	transport := &http.Transport{}
	t.Cleanup(transport.CloseIdleConnections)
	s.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	return s
}

// An answer is the status and the JSON of one.
type answer struct {
	Status      int
	Header      http.Header
	Code        string          `json:"code"`
	Message     string          `json:"message"`
	State       string          `json:"state"`
	Handle      string          `json:"handle"`
	Token       string          `json:"token"`
	RemainingMS int64           `json:"remaining_ms"`
	Locks       json.RawMessage `json:"locks"`
	Text        string          `json:"-"`
}

func (a answer) String() string { return fmt.Sprintf("%d %s", a.Status, a.Text) }

// do sends a request.
func (s *servedProcess) do(r *http.Request) answer {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), patience)
	defer cancel()
	res, err := s.http.Do(r.WithContext(ctx))
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	a := answer{Text: string(text)}
	_ = json.Unmarshal(text, &a) // of some answers it is no JSON
	a.Status, a.Header = res.StatusCode, res.Header
	return a
}

// request is a call as a client would make it.
func (s *servedProcess) request(token, method, body string) *http.Request {
	s.t.Helper()
	r, err := http.NewRequest(http.MethodPost, s.url+"/baton.v1."+method, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if token != "" {
		r.Header.Set("Authorization", "Bearer "+token)
	}
	return r
}

func (s *servedProcess) call(token, method, body string) answer {
	s.t.Helper()
	return s.do(s.request(token, method, body))
}

// wants demands the status of a call.
func (s *servedProcess) wants(status int, token, method, body string) answer {
	s.t.Helper()
	a := s.call(token, method, body)
	if a.Status != status {
		s.t.Errorf("%s %s: %v, want %d", method, body, a, status)
	}
	return a
}

// held demands a lease.
func (s *servedProcess) held(token, body string) answer {
	s.t.Helper()
	a := s.wants(http.StatusOK, token, "Locks/Acquire", body)
	if a.State != "HELD" || a.Handle == "" {
		s.t.Fatalf("%s: %v, want a lease", body, a)
	}
	return a
}

// audit is what the file of the audit has now.
func (s *servedProcess) audit() string {
	text, err := os.ReadFile(filepath.Join(s.dir, "audit"))
	if err != nil {
		s.t.Fatal(err)
	}
	return string(text)
}

// wrote demands a line of the audit with all words.
func (s *servedProcess) wrote(words ...string) {
	s.t.Helper()
	text := s.audit()
lines:
	for line := range strings.Lines(text) {
		var v map[string]any
		if err := json.Unmarshal([]byte(line), &v); err != nil {
			s.t.Errorf("the audit has %q: %v", line, err)
		}
		for _, w := range words {
			if !strings.Contains(line, w) {
				continue lines
			}
		}
		return
	}
	s.t.Errorf("no line of the audit has %q:\n%s", words, text)
}

// The access tokens of these tests, and what their callers may do.
const (
	tokenA     = "token-of-team-a"
	tokenB     = "token-of-team-b"
	tokenOps   = "token-of-ops"
	tokenShop  = "token-of-shop"
	tokenWhole = "token-of-all"
)

func writeRoles(t *testing.T, dir, more string) (path string) {
	t.Helper()
	path = filepath.Join(dir, "roles")
	text := "team-a " + roles.Credential(tokenA) + " a/=lock,list a/secret/= both/=lock\n" +
		"team-b " + roles.Credential(tokenB) + " b/=lock,list both/=lock\n" +
		"ops " + roles.Credential(tokenOps) + " =list,break\n" +
		"shop " + roles.Credential(tokenShop) + " shop/=limit\n" +
		"whole " + roles.Credential(tokenWhole) + " =lock,list,break,limit,once\n" + more
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// raw sends text on a connection of its own, and returns what comes back until the server
// closes the connection, and how long that took.
func (s *servedProcess) raw(conn net.Conn, text string) (back string, took time.Duration) {
	s.t.Helper()
	defer conn.Close()
	began := time.Now()
	if err := conn.SetDeadline(began.Add(patience)); err != nil {
		s.t.Fatal(err)
	}
	if _, err := io.WriteString(conn, text); err != nil {
		s.t.Fatal(err)
	}
	all, err := io.ReadAll(conn)
	if ne, ok := err.(net.Error); ok && ne.Timeout() {
		s.t.Errorf("the connection is open after %v", patience)
	}
	return string(all), time.Since(began)
}

func (s *servedProcess) dial() net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", s.addr)
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// memory is how many bytes of memory the process has.
func (s *servedProcess) memory() int64 {
	s.t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		s.t.Fatal(err)
	}
	found := regexp.MustCompile(`VmRSS:\s+(\d+) kB`).FindSubmatch(text)
	if found == nil {
		s.t.Fatalf("no VmRSS in %s", text)
	}
	kb, err := strconv.ParseInt(string(found[1]), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return kb << 10
}
