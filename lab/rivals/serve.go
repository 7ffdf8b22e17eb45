package main

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"

	"github.com/batonhq/baton/internal/httpguard"
	"github.com/batonhq/baton/internal/testserver"
	batonserver "github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/batonv1/batonv1connect"
)

// startServe starts a server over Redis, in a process of its own.
func startServe(t testserver.TB, e *env) error { return startTCP(t, e, "serve") }

// startTCP starts a process that serves at a port.
func startTCP(t testserver.TB, e *env, system string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a free port, for the child
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	return startDoor(t, e, system, childOrder{Kind: system, At: e.at, Socket: addr})
}

// childServe runs in the server's process.
func childServe(ctx context.Context, order childOrder, ready func() error) error {
	store, end, err := (&env{at: order.At}).redisStore()
	if err != nil {
		return err
	}
	defer end()
	return serveDoor(ctx, order.Socket, batonserver.Config{Store: store}, (*batonserver.Server).Handler, ready)
}

// serveDoor serves a part of a server until ctx ends, behind the same handlers as "baton
// serve".
func serveDoor(ctx context.Context, addr string, cfg batonserver.Config, part func(*batonserver.Server) http.Handler, ready func() error) error {
	cfg.Caller = func(r *http.Request) (batonserver.Caller, error) { return httpguard.Caller(r) }
	s, err := batonserver.New(cfg)
	if err != nil {
		return err
	}
	door, err := httpguard.New(httpguard.Config{Address: addr})
	if err != nil {
		return err
	}
	l, err := door.Listen()
	if err != nil {
		return err
	}
	h := batonserver.HTTPServer(door.Handler(part(s)))
	ended := make(chan error, 1)
	go func() { ended <- h.Serve(l) }()
	defer func() { <-ended }()
	defer h.Close()
	if err := ready(); err != nil && ctx.Err() == nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// openServe calls the server by JSON, over one connection for each goroutine.
func openServe(e *env, goroutines int) (*room, error) {
	seats := make([]*jsonSeat, 0, goroutines)
	leave := func() {
		for _, s := range seats {
			_ = s.conn.Close() // nothing is held
		}
	}
	for range goroutines {
		conn, err := net.Dial("tcp", e.at["serve"][0])
		if err != nil {
			leave()
			return nil, err
		}
		seats = append(seats, &jsonSeat{conn: conn, in: bufio.NewReader(conn)})
	}
	return &room{seat: func(i int) seat { return seats[i] }, close: leave}, nil
}

type jsonSeat struct {
	conn net.Conn
	in   *bufio.Reader
	line []byte
}

// call makes one call, and reads the answer.
func (s *jsonSeat) call(procedure string, fields, answer any) error {
	text, err := json.Marshal(fields)
	if err != nil {
		return err
	}
	s.line = fmt.Appendf(s.line[:0], "POST /baton.v1.Locks/%s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s",
		procedure, s.conn.RemoteAddr(), len(text), text)
	if _, err := s.conn.Write(s.line); err != nil {
		return err
	}
	res, err := http.ReadResponse(s.in, nil)
	if err != nil {
		return err
	}
	if text, err = io.ReadAll(res.Body); err != nil {
		return err
	}
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", res.Status, text)
	}
	return json.Unmarshal(text, answer)
}

func (s *jsonSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	want := struct {
		Key   string `json:"key"`
		Op    string `json:"op"`
		TTL   int64  `json:"ttl_ms"`
		Wait  int64  `json:"wait_ms"`
		Retry bool   `json:"retry"`
	}{key, rand.Text(), ttl.Milliseconds(), 60_000, false}
	for ; ; want.Retry = true {
		var a struct{ State, Handle string }
		if err := s.call("Acquire", want, &a); err != nil {
			return nil, err
		}
		switch a.State {
		case "HELD":
			return jsonHeld{s, a.Handle}, nil
		case "WAITING":
		default:
			return nil, fmt.Errorf("the server says %s", a.State)
		}
	}
}

type jsonHeld struct {
	seat   *jsonSeat
	handle string
}

func (h jsonHeld) Unlock() error {
	return h.seat.call("Release", map[string]string{"handle": h.handle}, &struct{}{})
}

// openConnect calls the server by Connect's client over HTTP/1.1, one client for all
// goroutines.
func openConnect(e *env, goroutines int) (*room, error) {
	t := &http.Transport{MaxIdleConnsPerHost: goroutines}
	c := batonv1connect.NewLocksClient(&http.Client{Transport: t}, "http://"+e.at["serve"][0])
	return &room{seat: common(serveSeat{c}), close: t.CloseIdleConnections}, nil
}

type serveSeat struct {
	client batonv1connect.LocksClient
}

func (s serveSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	op := rand.Text()
	for retry := false; ; retry = true {
		a, err := s.client.Acquire(ctx, &batonv1.AcquireRequest{
			Key: key, Op: op, TtlMs: uint32(ttl.Milliseconds()), WaitMs: 60_000, Retry: retry,
		})
		if err != nil {
			return nil, err
		}
		switch a.State {
		case batonv1.AcquireResponse_HELD:
			return serveHeld{s.client, a.Handle}, nil
		case batonv1.AcquireResponse_WAITING:
		default:
			return nil, fmt.Errorf("the server says %v", a.State)
		}
	}
}

type serveHeld struct {
	client batonv1connect.LocksClient
	handle string
}

func (h serveHeld) Unlock() error {
	_, err := h.client.Release(context.Background(), &batonv1.ReleaseRequest{Handle: h.handle})
	return err
}
