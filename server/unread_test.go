package server

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// frame writes a frame of HTTP/2.
func frame(w io.Writer, kind, flags byte, stream uint32, payload []byte) error {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	head = binary.BigEndian.AppendUint32(append(head, flags), stream)
	_, err := w.Write(append(head, payload...))
	return err
}

// An HTTP/2 client that answers pings but has a closed window does not keep an answer in
// memory for ever. Such a client needs no credentials.
func TestAnswersThatNobodyTakes(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New(), func(c *Config) {
		c.Caller = func(*http.Request) (Caller, error) { return nil, errors.New("an access token is needed") }
	})
	conn, err := net.Dial("tcp", serve(t, s))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	const (
		data, headers, reset, settings, ping = 0, 1, 3, 4, 6
		ack, end, endOfHeaders               = 1, 1, 4
	)
	_, err = io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
	must(err)
	must(frame(conn, settings, 0, 0, []byte{0, 4, 0, 0, 0, 0})) // a window of nothing
	paths := []string{"/x", "/healthz", "/v1/limit", "/grpc.health.v1.Health/Check"}
	for i, path := range paths {
		var block []byte
		fields := [][2]string{{":method", "GET"}, {":scheme", "http"}, {":authority", "localhost"}, {":path", path}}
		grpc := strings.HasPrefix(path, "/grpc")
		if grpc {
			fields[0][1] = "POST"
			fields = append(fields, [2]string{"content-type", "application/grpc"})
		}
		for _, field := range fields {
			block = append(block, 0, byte(len(field[0])))
			block = append(append(append(block, field[0]...), byte(len(field[1]))), field[1]...)
		}
		stream := uint32(2*i + 1)
		if grpc {
			must(frame(conn, headers, endOfHeaders, stream, block))
			must(frame(conn, data, end, stream, make([]byte, 5))) // an empty message
		} else {
			must(frame(conn, headers, endOfHeaders|end, stream, block))
		}
	}
	_ = conn.SetReadDeadline(time.Now().Add(writeTimeout + 30*time.Second))
	ended := make(map[uint32]bool)
	for len(ended) < len(paths) {
		head := make([]byte, 9)
		if _, err := io.ReadFull(conn, head); err != nil {
			t.Fatalf("%d of %d answers were given up: %v", len(ended), len(paths), err)
		}
		payload := make([]byte, binary.BigEndian.Uint32(head)>>8)
		_, err := io.ReadFull(conn, payload)
		must(err)
		switch kind, flags := head[3], head[4]; {
		case kind == settings && flags&ack == 0:
			must(frame(conn, settings, ack, 0, nil))
		case kind == ping && flags&ack == 0:
			must(frame(conn, ping, ack, 0, payload))
		case kind == reset:
			ended[binary.BigEndian.Uint32(head[5:])] = true
		}
	}
}

// A stalled store answers nothing until it is released.
type stalled struct {
	*memstore.Store
	asked   chan struct{}
	release chan struct{}
}

func stall() *stalled {
	return &stalled{memstore.New(), make(chan struct{}, 100), make(chan struct{})}
}

func (s *stalled) wait() {
	s.asked <- struct{}{}
	<-s.release
}

func (s *stalled) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	s.wait()
	return s.Store.Acquire(ctx, r)
}

func (s *stalled) Renew(ctx context.Context, c []driver.Claim, ttl time.Duration) []driver.Renewal {
	s.wait()
	return s.Store.Renew(ctx, c, ttl)
}

// A readiness probe does not wait for another one.
func TestReadyWhileAnotherAsks(t *testing.T) {
	t.Parallel()
	store := stall()
	url := "http://" + serve(t, replica(t, store)) + "/readyz"
	ready := func() (int, error) {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
		if err != nil {
			return 0, err
		}
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	first := make(chan error, 1)
	go func() {
		status, err := ready()
		if err == nil && status != http.StatusOK {
			err = fmt.Errorf("status %d", status)
		}
		first <- err
	}()
	<-store.asked
	if status, err := ready(); err != nil || status != http.StatusServiceUnavailable {
		t.Errorf("while another asks for the first time: %d, %v", status, err)
	}
	close(store.release)
	if err := <-first; err != nil {
		t.Error(err)
	}
	if status, err := ready(); err != nil || status != http.StatusOK {
		t.Errorf("afterwards: %d, %v", status, err)
	}
}

// The calls of one caller are bounded, also those that do not wait.
func TestCallsAreBounded(t *testing.T) {
	t.Parallel()
	store := stall()
	addr := serve(t, replica(t, store, func(c *Config) {
		c.MaxWaits = 1
		c.Caller = func(r *http.Request) (Caller, error) { return someone{name: r.Header.Get("Authorization")}, nil }
	}))
	acquire := func(caller, key string) (int, error) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+addr+"/baton.v1.Locks/Acquire", strings.NewReader(`{"key":"`+key+`"}`))
		if err != nil {
			return 0, err
		}
		r.Header.Set("Content-Type", "application/json")
		r.Header.Set("Authorization", caller)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	const most = 2 // for a MaxWaits of 1
	ended := make(chan error, most+1)
	begin := func(caller, key string) {
		go func() {
			status, err := acquire(caller, key)
			if err == nil && status != http.StatusOK {
				err = fmt.Errorf("%s: status %d", caller, status)
			}
			ended <- err
		}()
		<-store.asked
	}
	for i := range most {
		begin("a", fmt.Sprint("k", i))
	}
	refused := make(chan error, 1)
	go func() {
		status, err := acquire("a", "j")
		if err == nil && status != http.StatusTooManyRequests {
			err = fmt.Errorf("one more: status %d, want 429", status)
		}
		refused <- err
	}()
	select {
	case err := <-refused:
		if err != nil {
			t.Error(err)
		}
	case <-store.asked:
		t.Error("one more reaches the store")
	}
	begin("b", "b")
	close(store.release)
	for range most + 1 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
}
