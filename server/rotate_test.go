package server

import (
	"errors"
	"testing"
	"testing/synctest"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

// While a secret is replaced, servers that are a step apart accept each other's handles, and
// find what a call to another one has got.
func TestRotate(t *testing.T) {
	t.Parallel()
	const before, after = "the secret of before", "the secret of after"
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := replica(t, store), replica(t, store)
		rotate := func(s *Server, secrets ...string) {
			t.Helper()
			var all [][]byte
			for _, secret := range secrets {
				all = append(all, []byte(secret))
			}
			if err := s.Rotate(all...); err != nil {
				t.Fatal(err)
			}
		}
		renews := func(s *Server, h string) error {
			_, err := s.renews(t.Context(), h)
			return err
		}
		waiters := func(s *Server) int {
			t.Helper()
			info, err := s.locks.Inspect(t.Context(), "k")
			if err != nil {
				t.Fatal(err)
			}
			return len(info.Waiters)
		}
		for i, step := range [][2][]string{
			{{before}, {before, after}},
			{{before, after}, {after, before}},
			{{after, before}, {before, after}},
			{{after, before}, {after}},
		} {
			rotate(a, step[0]...)
			rotate(b, step[1]...)
			for from, to := range map[*Server]*Server{a: b, b: a} {
				h := from.held(t, &batonv1.AcquireRequest{Key: "k", Op: someOp}).Handle
				if err := renews(to, h); err != nil {
					t.Errorf("step %d: the handle of another server: %v", i, err)
				}
				if i > 0 && i < 3 {
					if again := to.held(t, &batonv1.AcquireRequest{Key: "k", Op: someOp, Retry: true}); renews(from, again.Handle) != nil {
						t.Errorf("step %d: a repeated call got %v", i, again)
					}
					several := &batonv1.AcquireRequest{Keys: []string{"k1", "k2"}, Op: someOp}
					first := from.held(t, several)
					several.Retry = true
					if again := to.held(t, several); again.Tokens["k1"] != first.Tokens["k1"] {
						t.Errorf("step %d: a repeated call for several keys got %v after %v", i, again.Tokens, first.Tokens)
					} else if err := from.releases(t.Context(), again.Handle); err != nil {
						t.Error(err)
					}
					waiting := &batonv1.AcquireRequest{Key: "k", Op: someOp + "2", WaitMs: 10}
					if got := from.stateOf(t, waiting); got != batonv1.AcquireResponse_WAITING {
						t.Errorf("step %d: %v, want WAITING", i, got)
					}
					if waiting.Retry = true; to.stateOf(t, waiting) != batonv1.AcquireResponse_WAITING {
						t.Errorf("step %d: the position is not kept", i)
					}
					if n := waiters(to); n != 1 {
						t.Errorf("step %d: the call has %d positions, want 1", i, n)
					}
					if _, err := (locksService{to}).Cancel(as(t.Context(), someone{}), &batonv1.CancelRequest{Key: "k", Op: someOp + "2"}); err != nil {
						t.Error(err)
					}
					if n := waiters(to); n != 0 {
						t.Errorf("step %d: after Cancel the call has %d positions, want none", i, n)
					}
				}
				if err := to.releases(t.Context(), h); err != nil {
					t.Error(err)
				}
			}
		}
		for _, ask := range []*batonv1.AcquireRequest{{Key: "k"}, {Keys: []string{"k1", "k2"}}} {
			rotate(a, before)
			rotate(b, after, before)
			old := a.held(t, ask).Handle
			renewed, err := (locksService{b}).Renew(as(t.Context(), someone{}), &batonv1.RenewRequest{Handle: old})
			if err != nil || renewed.Handle == "" {
				t.Fatalf("renewed: %v, %v, want a handle by the new secret", renewed, err)
			}
			rotate(a, after)
			wantCode(t, renews(a, old), connect.CodeInvalidArgument)
			again, err := (locksService{b}).Renew(as(t.Context(), someone{}), &batonv1.RenewRequest{Handle: renewed.Handle})
			if err != nil || again.Handle != "" {
				t.Errorf("renewed once more: %v, %v, want no other handle", again, err)
			}
			if err := a.releases(t.Context(), renewed.Handle); err != nil {
				t.Error(err)
			}
		}
		h := a.held(t, &batonv1.AcquireRequest{Key: "k"}).Handle
		rotate(b, before)
		wantCode(t, renews(b, h), connect.CodeInvalidArgument)
		for _, bad := range [][][]byte{nil, {nil}, {[]byte(before), []byte("short")}} {
			if err := b.Rotate(bad...); !errors.As(err, new(*ConfigError)) {
				t.Errorf("%q: %v, want a *ConfigError", bad, err)
			}
		}
		if err := renews(b, b.held(t, &batonv1.AcquireRequest{Key: "other"}).Handle); err != nil {
			t.Errorf("after a Rotate that failed: %v", err)
		}
	})
}
