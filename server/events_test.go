package server

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/store/memstore"
)

// subscribe asks for events, and returns the lines of the answer.
func subscribe(t *testing.T, addr, prefix string, header ...string) (*http.Response, *bufio.Scanner) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, addr+"/v1/events", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Baton-Prefix", prefix)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { res.Body.Close() })
	return res, bufio.NewScanner(res.Body)
}

// next is the next event, as "what data".
func next(t *testing.T, lines *bufio.Scanner) string {
	t.Helper()
	what := ""
	for lines.Scan() {
		if name, ok := strings.CutPrefix(lines.Text(), "event: "); ok {
			what = name
		}
		if data, ok := strings.CutPrefix(lines.Text(), "data: "); ok {
			return what + " " + data
		}
	}
	return "end of the stream"
}

// Server-sent events tell who has, had and wants locks, and end when the server is stopped.
func TestEvents(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New())
	addr := "http://" + serve(t, s)
	c := &caller{t: t, addrs: [2]string{addr, addr}}
	c.want(200, "x", "Acquire", m{"key": "other", "owner": "o"})
	first := c.want(200, "x", "Acquire", m{"key": "app/a", "owner": "one"})
	res, lines := subscribe(t, addr, "app/")
	if res.StatusCode != 200 || res.Header.Get("Content-Type") != "text/event-stream" {
		t.Fatalf("%v", res)
	}
	want := func(parts ...string) {
		t.Helper()
		got := next(t, lines)
		for _, part := range parts {
			if !strings.Contains(got, part) {
				t.Errorf("%s, want %s", got, part)
			}
		}
	}
	want(`got {"key":"app/a"`, `"mode":"exclusive"`, `"token":"`)
	want("ready {}")
	waiting := make(chan string)
	go func() {
		_, answer, _ := post(t, addr+"/baton.v1.Locks/Acquire", `{"key":"app/a","owner":"two","wait_ms":20000}`)
		waiting <- answer["state"].(string)
	}()
	want(`waits {"key":"app/a","waiting":1,"owners":["two"]}`)
	c.want(200, "x", "Release", m{"handle": first["handle"]})
	if got := <-waiting; got != "HELD" {
		t.Error(got)
	}
	want("ended ")
	want("got ", `"owner":"two"`)
	want(`waits {"key":"app/a","waiting":0}`)
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	want(`end {"code":"unavailable","message":"this server is being stopped`)
	want("end of the stream")
}

// What the events refuse.
func TestEventsThatAreRefused(t *testing.T) {
	t.Parallel()
	addr := named(t, memstore.New(), "rules: []")
	for _, c := range []struct {
		prefix string
		header []string
		status int
	}{
		{"secret/", nil, 403},
		{"a", []string{"Sec-Fetch-Site", "cross-site"}, 403},
		{"a", []string{"Sec-Fetch-Site", "same-site"}, 403},
		{strings.Repeat("x", 600), nil, 400},
		{"\xff", nil, 400},
	} {
		if res, _ := subscribe(t, addr, c.prefix, c.header...); res.StatusCode != c.status {
			t.Errorf("%.20q %v: %d, want %d", c.prefix, c.header, res.StatusCode, c.status)
		}
	}
	for _, url := range []string{addr + "/v1/events?prefix=a"} {
		if res, err := http.Get(url); err != nil || res.StatusCode != 400 {
			t.Errorf("%s: %v, %v", url, res, err)
		}
	}
	if status, _, _ := post(t, addr+"/v1/events", "{}"); status != 400 {
		t.Errorf("POST: %d", status)
	}
	for i := range maxFeeds + 1 {
		res, lines := subscribe(t, addr, "a", "Caller", "many")
		if i == maxFeeds {
			if res.StatusCode != 429 {
				t.Errorf("one too many: %d", res.StatusCode)
			}
		} else if got := next(t, lines); got != "ready {}" {
			t.Error(got)
		}
	}
}

// A client that does not read what happens to locks is cut off, and delays no server that is
// being stopped. Its connection is a pipe: what it does not read is not taken.
func TestEventsThatNobodyReads(t *testing.T) {
	t.Parallel()
	for _, stops := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := replica(t, memstore.New())
			l := pipes{make(chan net.Conn), make(chan struct{})}
			h := HTTPServer(s.Handler())
			ended := make(chan error, 1)
			go func() { ended <- h.Serve(l) }()
			ours, client := net.Pipe()
			l.conns <- ours
			if _, err := io.WriteString(client, "GET /v1/events HTTP/1.1\r\nHost: localhost\r\n\r\n"); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
			began, most := time.Now(), 2*endTimeout
			if stops {
				if err := errors.Join(s.Shutdown(t.Context()), h.Shutdown(t.Context())); err != nil {
					t.Error(err)
				}
			} else {
				most = writeTimeout + time.Second
				for !s.feeds.enter("", 1) { // as long as the stream is open
					time.Sleep(time.Second)
				}
				s.feeds.leave("")
				if err := errors.Join(s.Shutdown(t.Context()), h.Close()); err != nil {
					t.Error(err)
				}
			}
			if d := time.Since(began); d > most {
				t.Errorf("it took %v", d)
			}
			<-ended
			_ = client.Close()
		})
	}
}

// pipes is a listener for connections without a network.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipes) Close() error   { close(l.closed); return nil }
func (l pipes) Addr() net.Addr { return &net.UnixAddr{Name: "pipe", Net: "unix"} }
