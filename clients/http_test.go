//go:build unix

package clients

import (
	"encoding/base64"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// The clients for servers, at two servers with one secret.
func TestServers(t *testing.T) {
	t.Parallel()
	for _, s := range sites {
		for _, l := range languages {
			if l.can(network) {
				t.Run(s.name+"/"+l.name, func(t *testing.T) {
					l.wanted(t)
					t.Parallel()
					testServers(t, s.make(t).url, l)
				})
			}
		}
	}
}

func testServers(t *testing.T, store string, l language) {
	h := newHost(t, store)
	secret := filepath.Join(h.dir, "secret")
	if err := os.WriteFile(secret, []byte(base64.StdEncoding.EncodeToString(make([]byte, 32))), 0o600); err != nil {
		t.Fatal(err)
	}
	var urls []string
	var servers []*exec.Cmd
	for range 2 {
		addr := testserver.FreeAddr(t)
		server := baton(t, "serve", "--store", store, "--listen", addr, "--secret-file", secret)
		server.Stderr = t.Output()
		if err := testserver.Start(server); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = server.Process.Kill(); _ = server.Wait() })
		listens(t, "tcp", addr)
		urls, servers = append(urls, "http://"+addr), append(servers, server)
	}
	start := func() *process { return l.start(t, strings.Join(urls, ",")) }
	a, b, local := start(), start(), l.start(t, h.socket)

	// Each way to the lock excludes the other, and the tokens rise through both.
	first := a.lock("k")
	a.promise()
	b.must("held", "lock k 0 - -")
	b.must("held", "lock k 1200 - -")
	local.must("held", "lock k 0 - -")
	a.must("ok", "unlock")
	a.must("lost", "check")
	second := local.lock("k")
	b.send("lock k - - -")
	time.Sleep(time.Second) // so that it waits for more than one turn, most likely
	local.must("ok", "unlock")
	var third int64
	if _, err := fmt.Sscanf(b.expect("ok", "lock"), "ok %d", &third); err != nil || second <= first || third <= second {
		t.Errorf("the tokens are %d, %d, %d, %v", first, second, third, err)
	}
	a.number("lock readers 0 - shared")
	b.must("ok", "unlock")
	b.number("lock readers 0 - shared")
	b.must("ok", "unlock")
	a.must("ok", "unlock")

	for _, code := range blocks(t, strings.ToLower(l.name)+"/README.md")[map[string]string{"Python": "python", "Node": "js"}[l.name]] {
		if !strings.Contains(code, "7420") {
			continue // it is about the agent
		}
		code = strings.Replace(code, "http://127.0.0.1:7420", urls[0], 1)
		var page *exec.Cmd
		switch l.name {
		case "Python":
			page = exec.Command(pythonProgram(t), "-B", "-c", "write = print\ndef pay(): pass\n"+code)
			page.Env = append(os.Environ(), "PYTHONPATH=python")
		case "Node":
			code = strings.Replace(code, "baton-agent/http", "./node/baton_http.mjs", 1)
			page = exec.Command(testserver.Node(t), "--input-type=module", "--eval", "const write = console.log, pay = () => {};\n"+code)
		}
		if out, err := page.CombinedOutput(); err != nil || len(out) == 0 {
			t.Errorf("the page: %v\n%s", err, out)
		}
	}

	// A server dies. The lock is renewed at the other.
	a.lock("kept")
	if err := servers[0].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	over := time.Now().Add(ttl * 5 / 4)
	b.lock("stopped")
	until := b.promise()
	b.signal(syscall.SIGSTOP)
	if got := <-h.take("stopped"); got.err != nil || got.at.Before(until) {
		t.Errorf("the lock of a process that is stopped: %v before its time was over, %v", until.Sub(got.at), got.err)
	}
	b.signal(syscall.SIGCONT)
	b.must("lost", "check")
	b.must("lost", "unlock")
	time.Sleep(time.Until(over)) // the TTL
	a.promise()

	if out, err := baton(t, "--store", store, "break", "--yes", "kept").CombinedOutput(); err != nil {
		t.Fatalf("break: %v\n%s", err, out)
	}
	for late := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		a.send("check")
		if got := a.answer(); strings.HasPrefix(got, "lost ") {
			break
		} else if time.Now().After(late) {
			t.Fatalf("after the loss check answers %q", got)
		}
	}
	a.must("lost", "unlock")

	// No update is lost between both ways.
	file := filepath.Join(h.dir, "number")
	if err := os.WriteFile(file, []byte("0 0\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process{a, b, local} {
		p.send("count n %s 50", file)
	}
	for _, p := range []*process{a, b, local} {
		p.expect("ok", "count")
	}
	if got, err := os.ReadFile(file); err != nil || !strings.HasPrefix(string(got), "150 ") {
		t.Errorf("the number is %s, %v", got, err)
	}

	// No server is there.
	_ = servers[1].Process.Kill()
	_ = servers[1].Wait()
	a.must("error unavailable", "lock k 0 - -")
}
