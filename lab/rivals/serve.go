package main

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"net/http"

	"github.com/batonhq/baton/internal/testserver"
	batonserver "github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/batonv1/batonv1connect"
)

// startServe starts a server over Redis, in a process of its own.
func startServe(t testserver.TB, e *env) error { return startTCP(t, e, "serve") }

// startTCP starts a process that serves at a port.
func startTCP(t testserver.TB, e *env, system string) error {
	l, err := net.Listen("tcp", "127.0.0.1:0") // a port that is free; the child takes it
	if err != nil {
		return err
	}
	addr := l.Addr().String()
	if err := l.Close(); err != nil {
		return err
	}
	return startDoor(t, e, system, childOrder{Kind: system, At: e.at, Socket: addr})
}

// childServe is that process.
func childServe(ctx context.Context, order childOrder, ready func() error) error {
	store, end, err := (&env{at: order.At}).redisStore()
	if err != nil {
		return err
	}
	defer end()
	s, err := batonserver.New(batonserver.Config{Store: store})
	if err != nil {
		return err
	}
	return serveHTTP(ctx, order.Socket, batonserver.HTTPServer(s.Handler()), ready)
}

// serveHTTP serves until ctx ends.
func serveHTTP(ctx context.Context, addr string, h *http.Server, ready func() error) error {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return err
	}
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

// openServe calls the server by Connect's client over HTTP/1.1, all goroutines by one.
func openServe(e *env, goroutines int) (*room, error) {
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
