package server

import (
	"context"
	"errors"
	"testing"

	"connectrpc.com/connect"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

func (s *Server) begins(t *testing.T, r *batonv1.BeginRequest) *batonv1.BeginResponse {
	t.Helper()
	res, err := onceService{s}.Begin(as(t.Context(), someone{}), r)
	if err != nil {
		t.Fatalf("begin %v: %v", r, err)
	}
	return res
}

func (s *Server) finishes(t *testing.T, r *batonv1.FinishRequest) error {
	t.Helper()
	if _, err := (onceService{s}).Finish(as(t.Context(), someone{}), r); err != nil {
		return s.failure("Finish", err)
	}
	return nil
}

func TestOnce(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	testOnce(t, func() driver.Store { return store })
}

func testOnce(t *testing.T, open func() driver.Store) {
	a, b := replica(t, open()), replica(t, open())
	runner, err := once.New(open(), once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	key := t.Name() + driver.NewID() // the server may be shared with an earlier run

	// The first attempt gives up, the second succeeds.
	first := a.begins(t, &batonv1.BeginRequest{Key: key, TtlMs: 10_000})
	if first.State != batonv1.BeginResponse_RUN || first.Attempts != 1 || first.RemainingMs == 0 {
		t.Fatalf("the first: %v", first)
	}
	if got := b.begins(t, &batonv1.BeginRequest{Key: key}); got.State != batonv1.BeginResponse_BUSY {
		t.Errorf("while it runs: %v", got)
	}
	if _, err := runner.TryDo(t.Context(), key, nil); !errors.Is(err, baton.ErrHeld) {
		t.Errorf("a Runner while it runs: %v", err)
	}
	if _, err := b.renews(t.Context(), first.Handle); err != nil {
		t.Error(err)
	}
	if err := b.releases(t.Context(), first.Handle); err != nil {
		t.Error(err)
	}
	if rec, err := runner.Find(t.Context(), key); err != nil || rec.Done || !rec.Retry || len(rec.Result) == 0 {
		t.Errorf("after the first gave up: %+v, %v", rec, err)
	}
	second := b.begins(t, &batonv1.BeginRequest{Key: key, Op: "op x of 16 bytes"})
	if second.State != batonv1.BeginResponse_RUN || second.Attempts != 2 || second.Token <= first.Token {
		t.Fatalf("the second: %v", second)
	}
	again := a.begins(t, &batonv1.BeginRequest{Key: key, Op: "op x of 16 bytes", Retry: true})
	if again.State != batonv1.BeginResponse_RUN || again.Token < second.Token {
		t.Fatalf("its repetition: %v", again)
	}
	wantCode(t, a.finishes(t, &batonv1.FinishRequest{Handle: first.Handle}), connect.CodeAborted)
	for range 2 { // its answer may be lost
		if err := a.finishes(t, &batonv1.FinishRequest{Handle: again.Handle, Result: []byte("42")}); err != nil {
			t.Error(err)
		}
	}
	if got := b.begins(t, &batonv1.BeginRequest{Key: key}); got.State != batonv1.BeginResponse_DONE || string(got.Result) != "42" {
		t.Errorf("afterwards: %v", got)
	}
	if got, err := runner.Do(t.Context(), key, nil); err != nil || string(got) != "42" {
		t.Errorf("a Runner afterwards: %q, %v", got, err)
	}

	// One that fails for good, after a Runner's attempt that failed.
	key += "/failed"
	_, err = runner.Do(t.Context(), key, func(context.Context, once.Attempt) ([]byte, error) {
		if got := a.begins(t, &batonv1.BeginRequest{Key: key}); got.State != batonv1.BeginResponse_BUSY {
			t.Errorf("while a Runner runs it: %v", got)
		}
		return nil, errors.New("not yet")
	})
	if err == nil {
		t.Error("no error")
	}
	third := a.begins(t, &batonv1.BeginRequest{Key: key})
	if third.Attempts != 2 {
		t.Errorf("after a Runner's attempt: %v", third)
	}
	if err := b.finishes(t, &batonv1.FinishRequest{Handle: third.Handle, Failed: true, Result: []byte("no such customer"), KeepSeconds: 60}); err != nil {
		t.Error(err)
	}
	if got := b.begins(t, &batonv1.BeginRequest{Key: key}); got.State != batonv1.BeginResponse_FAILED || string(got.Result) != "no such customer" {
		t.Errorf("afterwards: %v", got)
	}
	if _, err := runner.Do(t.Context(), key, nil); !errors.Is(err, once.ErrFinal) {
		t.Errorf("a Runner afterwards: %v", err)
	}

	// What makes no sense.
	lock := a.held(t, &batonv1.AcquireRequest{Key: key})
	wantCode(t, a.finishes(t, &batonv1.FinishRequest{Handle: lock.Handle}), connect.CodeInvalidArgument)
	if _, err := (onceService{a}).Begin(as(t.Context(), someone{}), &batonv1.BeginRequest{}); connect.CodeOf(a.failure("Begin", err)) != connect.CodeInvalidArgument {
		t.Errorf("no key: %v", err)
	}
	cancelled := a.begins(t, &batonv1.BeginRequest{Key: key + "/cancelled", Op: "op z of 16 bytes"})
	if cancelled.State != batonv1.BeginResponse_RUN {
		t.Fatal(cancelled)
	}
	if _, err := (locksService{b}).Cancel(as(t.Context(), someone{}), &batonv1.CancelRequest{Key: key + "/cancelled", Op: "op z of 16 bytes", Once: true}); err != nil {
		t.Error(err)
	}
	if got := b.begins(t, &batonv1.BeginRequest{Key: key + "/cancelled"}); got.State != batonv1.BeginResponse_RUN || got.Attempts != 2 {
		t.Errorf("after a cancelled attempt: %v", got)
	}
}
