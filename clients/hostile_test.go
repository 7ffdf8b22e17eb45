//go:build unix

package clients

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/agent"
)

const greeting = `{"ok":true,"v":1,"store":"memory"}` + "\n"

// A liar is an agent with wrong answers.
type liar struct {
	name   string
	to     string // the requests with a wrong answer: lock, check, finish
	answer string // without a newline if the connection ends there; ID is that of the request
	after  time.Duration
	over   bool // the answer is correct, but late
}

var liars = []liar{
	{name: "no JSON", to: "check", answer: "ok\n"},
	{name: "a list", to: "check", answer: "[2]\n"},
	{name: "null", to: "check", answer: "null\n"},
	{name: "a number", to: "check", answer: "2\n"},
	{name: "an empty line", to: "check", answer: "\n"},
	{name: "half of a line", to: "check", answer: `{"id":2,"ok":true,"remaining_ms":6000`},
	{name: "a line without its end", to: "check", answer: `{"id":2,"ok":true,"remaining_ms":60000}`},
	{name: "the answer to another request", to: "check", answer: `{"id":1,"ok":true,"remaining_ms":60000}` + "\n"},
	{name: "an answer to no request", to: "check", answer: `{"ok":true,"remaining_ms":60000}` + "\n"},
	{name: "an id of another type", to: "check", answer: `{"id":"2","ok":true,"remaining_ms":60000}` + "\n"},
	{name: "neither yes nor no", to: "check", answer: `{"id":2,"remaining_ms":60000}` + "\n"},
	{name: "no time", to: "check", answer: `{"id":2,"ok":true}` + "\n"},
	{name: "a time that is none", to: "check", answer: `{"id":2,"ok":true,"remaining_ms":"soon"}` + "\n"},
	{name: "an answer that is late", to: "check", answer: `{"id":2,"ok":true,"remaining_ms":900}` + "\n", after: time.Second, over: true},
	{name: "the end of the session", to: "check", answer: `{"ok":false,"error":"denied","message":"not any more"}` + "\n"},
	{name: "the end of the session with the operation", to: "finish", answer: `{"ok":false,"error":"denied","message":"not any more"}` + "\n"},
	{name: "an operation that is not recorded", to: "finish", answer: `{"id":ID,"ok":false,"error":"unrecorded","message":"no store"}` + "\n"},
	{name: "the connection ends with the operation", to: "finish"},
	{name: "no token", to: "lock", answer: `{"id":1,"ok":true}` + "\n"},
	{name: "a token that is none", to: "lock", answer: `{"id":1,"ok":true,"token":"high"}` + "\n"},
}

// Late answers, and answers to other requests, are not accepted.
func TestAnswersThatAreNotBelieved(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		if l.http {
			continue
		}
		t.Run(l.name, func(t *testing.T) {
			l.wanted(t)
			t.Parallel()
			p := l.start(t, listen(t, greeting))
			for i, c := range liars {
				if c.to == "finish" {
					want := "kept done lost"
					if strings.Contains(c.answer, "ID") {
						want = "kept done error unrecorded"
					}
					p.must(want, "once %d - result done", i)
					continue
				}
				p.send("lock %d - - -", i)
				if c.to == "check" {
					p.expect("ok", "lock")
					p.send("check")
				}
				got := p.answer()
				n, err := strconv.Atoi(strings.TrimPrefix(got, "ok "))
				if late := c.over && err == nil && n <= 0; !late && !strings.HasPrefix(got, "lost ") {
					t.Errorf("%s: it answers %q", c.name, got)
				}
				if c.to == "check" && !c.over {
					p.must("lost", "check") // the session has ended
				}
				if c.to == "check" {
					p.send("unlock")
					p.answer()
				}
			}
			l.start(t, listen(t, "HTTP/1.1 400 Bad Request\n")).must("error agent", "lock k - - -")
			l.start(t, listen(t, `{"ok":false,"error":"busy","message":"full"}`+"\n")).must("error busy", "lock k - - -")
		})
	}
}

// listen is an agent whose wrong answers are in the lock's key.
func listen(t *testing.T, greeting string) (socket string) {
	t.Helper()
	socket = filepath.Join(folder(t), "agent.sock")
	l, err := agent.Listen(socket, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go lie(conn, greeting)
		}
	}()
	return socket
}

func lie(conn net.Conn, greeting string) {
	defer conn.Close()
	fmt.Fprint(conn, greeting)
	var c liar
	for in := bufio.NewScanner(conn); in.Scan(); {
		var r struct {
			ID      int64
			Do, Key string
		}
		if json.Unmarshal(in.Bytes(), &r) != nil {
			return
		}
		if i, err := strconv.Atoi(r.Key); err == nil {
			c = liars[i]
		}
		switch {
		case r.Do == c.to:
			time.Sleep(c.after) // more than what is left
			fmt.Fprint(conn, strings.Replace(c.answer, "ID", strconv.FormatInt(r.ID, 10), 1))
			if !strings.HasSuffix(c.answer, "\n") {
				return
			}
		default:
			fmt.Fprintf(conn, `{"id":%d,"ok":true,"token":"1","remaining_ms":60000,"run":true,"attempts":1}`+"\n", r.ID)
		}
	}
}
