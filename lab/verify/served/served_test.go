package served_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/badstores"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/served"
	"github.com/batonhq/baton/store/memstore"
)

func serve(t drivertest.T, s driver.Locks) *served.Server {
	server, err := served.Serve(s)
	if err != nil {
		t.Fatalf("serve: %v", err)
	}
	t.Cleanup(server.Close)
	return server
}

func dial(t drivertest.T, addr string) driver.Store {
	s, err := served.Dial(t.Context(), addr)
	if err != nil {
		t.Fatalf("dial: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestLocks(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	drivertest.Locks(t, drivertest.Harness{Open: func(t drivertest.T, n int) []driver.Locks {
		addr := serve(t, memstore.New()).Addr()
		all := make([]driver.Locks, n)
		for i := range all {
			all[i] = dial(t, addr)
		}
		return all
	}})
}

func TestLimits(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	drivertest.Limits(t, drivertest.LimitHarness{Steps: 100, Open: func(t drivertest.T, n int) []limits.Store {
		addr := serve(t, memstore.New()).Addr()
		all := make([]limits.Store, n)
		for i := range all {
			all[i] = dial(t, addr).(limits.Store)
		}
		return all
	}})
}

// A store without limits has none for clients, either.
func TestWithoutLimits(t *testing.T) {
	t.Parallel()
	if _, ok := dial(t, serve(t, badstores.New("")).Addr()).(limits.Store); ok {
		t.Error("a store that cannot limit says that it can")
	}
}

// A request whose answer is lost has happened, and the error says that it may have; the next request
// makes a new connection.
func TestLostAnswer(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, serve(t, memstore.New()).Addr())
	s := dial(t, proxy.Addr)
	r := driver.Request{Claim: driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}, TTL: time.Minute}
	cut := proxy.CutAfterRequest(nil)
	if _, err := s.Acquire(t.Context(), r); !errors.Is(err, driver.ErrUnknown) {
		t.Errorf("%v, want driver.ErrUnknown", err)
	}
	<-cut
	r.Retry = true
	g, err := s.Acquire(t.Context(), r)
	if err != nil || g.Token == 0 {
		t.Fatalf("asked again: %+v, %v", g, err)
	}
	proxy.Swallow(faultproxy.ToClient)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := s.Release(ctx, r.Claim); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("silence: %v", err)
	}
	proxy.Heal()
	proxy.Refuse()
	proxy.Cut()
	for err = errors.New("not asked"); !errors.Is(err, driver.ErrUnavailable); { // a broken connection is noticed after a while
		if err = s.Release(t.Context(), r.Claim); err == nil || errors.Is(err, driver.ErrLost) {
			t.Fatalf("released although nobody listens: %v", err)
		}
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if err := s.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
