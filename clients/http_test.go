//go:build unix

package clients

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
	"sync/atomic"
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
			if l.http {
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
	start := func() *process { return l.start(t, h.at(l)) }
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

	language, _, _ := strings.Cut(l.name, ",")
	for _, code := range blocks(t, strings.ToLower(language)+"/README.md")[map[string]string{"Python": "python", "Node": "js"}[language]] {
		if !strings.Contains(code, "7420") {
			continue // it is about the agent
		}
		code = strings.Replace(code, "http://127.0.0.1:7420", h.urls[0], 1)
		var page *exec.Cmd
		switch language {
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

	// A client that gives up while it waits says so, and waits for no position to run out.
	holder := h.other()
	if a, err := holder.ask(`{"id":1,"do":"lock","key":"given-up"}`); err != nil || !a.OK {
		t.Fatalf("%v, %+v", err, a)
	}
	calls := make(chan string, 1000)
	await := func(call string) {
		t.Helper()
		for late := time.After(patience); ; {
			select {
			case got := <-calls:
				if got == call {
					return
				}
			case <-late:
				t.Fatalf("there is no call of %s", call)
			}
		}
	}
	var acquired atomic.Int32
	denied := l.start(t, between(t, h.urls[0], func(w http.ResponseWriter, call string) bool {
		calls <- call
		if call != "Acquire" || acquired.Add(1) == 1 {
			return true
		}
		w.WriteHeader(http.StatusForbidden)
		fmt.Fprint(w, `{"code":"permission_denied","message":"not any more"}`)
		return false
	}))
	denied.must("error permission_denied", "lock given-up - - -")
	await("Cancel")
	if language == "Python" { // in Node a signal ends the process
		interrupted := l.start(t, between(t, h.urls[0], func(_ http.ResponseWriter, call string) bool {
			calls <- call
			return true
		}))
		interrupted.send("lock given-up - - -")
		await("Acquire")
		interrupted.signal(syscall.SIGINT)
		interrupted.expect("interrupted", "lock")
		await("Cancel")
	}

	// The answer to a release is lost. That the other server knows of no lease is success.
	lossy := l.start(t, between(t, h.urls[0], func(_ http.ResponseWriter, call string) bool {
		if call == "Release" {
			panic(http.ErrAbortHandler)
		}
		return true
	})+","+h.urls[1])
	lossy.lock("lossy")
	lossy.must("ok", "unlock")
	h.free("lossy", "the answer to its release was lost")

	// The server is slow to release a lock that was valid when unlock was called: that the
	// server does not know it after its end is no loss. A process that a busy machine has
	// stopped calls too late, or waits in vain: it is told so, and tries again.
	var due atomic.Pointer[time.Time]
	slow := l.start(t, between(t, h.urls[0], func(w http.ResponseWriter, call string) bool {
		switch call {
		case "Renew":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "Release":
			time.Sleep(time.Until(*due.Load())) // the server is slow
			w.WriteHeader(http.StatusNotFound)
			fmt.Fprint(w, `{"code":"not_found","message":"there is no such lock"}`)
		}
		return call == "Acquire"
	}))
	for try := 1; ; try++ {
		slow.lock("slow")
		end := slow.promise()
		late := end.Add(50 * time.Millisecond)
		due.Store(&late)
		time.Sleep(time.Until(end.Add(-500 * time.Millisecond))) // within the last second the call may take longer
		slow.send("unlock")
		if got := slow.answer(); strings.HasPrefix(got, "ok") {
			break
		} else if try == 3 {
			t.Fatalf("of a lock that was valid when unlock was called it says %q", got)
		}
	}

	// A server dies. The lock is renewed at the other, and released there.
	released := start()
	released.lock("released")
	a.lock("kept")
	if err := h.servers[0].Process.Kill(); err != nil {
		t.Fatal(err)
	}
	released.must("ok", "unlock")
	h.free("released", "a server has died")
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
	_ = h.servers[1].Process.Kill()
	_ = h.servers[1].Wait()
	a.must("error unavailable", "lock k 0 - -")
}

// between is a server before another. meddle is told of each call that was answered there,
// and reports whether the client is to get the answer.
func between(t *testing.T, to string, meddle func(w http.ResponseWriter, call string) bool) (url string) {
	t.Helper()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, err := http.Post(to+r.URL.Path, r.Header.Get("Content-Type"), r.Body)
		if err != nil {
			panic(http.ErrAbortHandler)
		}
		defer answer.Body.Close()
		if meddle(w, path.Base(r.URL.Path)) {
			w.WriteHeader(answer.StatusCode)
			_, _ = io.Copy(w, answer.Body)
		}
	}))
	t.Cleanup(server.Close)
	return server.URL
}
