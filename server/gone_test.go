package server

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

// A granting store tells when it has granted something.
type granting struct {
	driver.Store
	granted atomic.Bool
}

func (s *granting) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := s.Store.Acquire(ctx, r)
	s.granted.Store(err == nil)
	return g, err
}

func (s *granting) Unwrap() driver.Locks { return s.Store }

// An ending caller ends its call once the store has granted the lock, before the answer.
type ending struct {
	store   *granting
	request context.Context
	end     func() // by the client
}

func (c *ending) Name() string {
	if c.store.granted.Load() {
		c.end()
		<-c.request.Done()
	}
	return ""
}

func (*ending) May(verb, key string) error { return nil }

// A client that closes its half of the connection can still read. If it is told that it
// has the lock, it has the lock.
func TestHalfClosed(t *testing.T) {
	t.Parallel()
	store := &granting{Store: memstore.New()}
	halfClose := make(chan struct{}, 10)
	s := replica(t, store, func(c *Config) {
		c.Caller = func(r *http.Request) (Caller, error) {
			return &ending{store, r.Context(), func() { halfClose <- struct{}{} }}, nil
		}
	})
	conn, err := net.Dial("tcp", serve(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	const body = `{"key":"k","ttl_ms":30000}`
	if _, err := fmt.Fprintf(conn, "POST /baton.v1.Locks/Acquire HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", len(body), body); err != nil {
		t.Fatal(err)
	}
	<-halfClose
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetReadDeadline(time.Now().Add(20 * time.Second))
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	text, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	held := strings.Contains(string(text), "HELD")
	info, err := s.locks.Inspect(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	if held != (len(info.Holders) == 1) {
		t.Errorf("told %s, and the lock has %d holders", text, len(info.Holders))
	}
}

// A call that its client has bounded leaves nothing behind, even though the connection
// goes on. With an op it leaves what it got: another call may have been told of it.
func TestBoundedCallLeavesNothing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ key, op string }{{"k", ""}, {"once/k", ""}, {"k", someOp}} {
		key := c.key
		synctest.Test(t, func(t *testing.T) {
			store := &granting{Store: memstore.New()}
			s := replica(t, store)
			ctx, cancel := context.WithCancel(t.Context())
			ctx = as(ctx, &ending{store, ctx, cancel})
			res, err := s.around(func(ctx context.Context, _ connect.AnyRequest) (connect.AnyResponse, error) {
				if operation, ok := strings.CutPrefix(key, "once/"); ok {
					res, err := onceService{s}.Begin(ctx, &batonv1.BeginRequest{Key: operation, TtlMs: 30_000})
					return connect.NewResponse(res), err
				}
				res, err := locksService{s}.Acquire(ctx, &batonv1.AcquireRequest{Key: key, Op: c.op, TtlMs: 30_000})
				return connect.NewResponse(res), err
			})(ctx, connect.NewRequest(&batonv1.AcquireRequest{}))
			if (err == nil) != (c.op != "") {
				t.Errorf("%v: %v, %v, after the client's time", c, res, err)
			}
			if info, err := s.locks.Inspect(t.Context(), key); err != nil || (len(info.Holders) > 0) != (c.op != "") {
				t.Errorf("%v: afterwards there is %v, %v", c, info, err)
			}
		})
	}
}
