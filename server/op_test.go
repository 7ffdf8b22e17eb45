package server

import (
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

const someOp = "8Rk2vWq1mZt5xLd7nYb3cF"

// An op that is used again for another kind of lock finds nothing of the first.
func TestOpOfAnotherKind(t *testing.T) {
	t.Parallel()
	for name, kinds := range map[string][3]*batonv1.AcquireRequest{
		"shared":  {{Shared: true}, {Shared: true}, {}},
		"permits": {{Permits: 1, Of: 10}, {Permits: 1, Of: 10}, {Permits: 10, Of: 10}},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := replica(t, memstore.New())
			first, beside, whole := kinds[0], kinds[1], kinds[2]
			first.Key, beside.Key, whole.Key = "k", "k", "k"
			first.Op, whole.Op = someOp, someOp
			s.held(t, first)
			other := s.held(t, beside)
			if got := s.stateOf(t, whole); got != batonv1.AcquireResponse_REFUSED {
				t.Errorf("%s: all of the lock beside another holder: %v, want REFUSED", name, got)
			}
			if err := s.releases(t.Context(), other.Handle); err != nil {
				t.Fatal(err)
			}
			cancel := &batonv1.CancelRequest{Key: "k", Op: someOp}
			cancels := func() {
				t.Helper()
				if _, err := (locksService{s}).Cancel(as(t.Context(), someone{}), cancel); err != nil {
					t.Fatal(err)
				}
			}
			cancels()
			if got := s.stateOf(t, whole); got != batonv1.AcquireResponse_REFUSED {
				t.Errorf("%s: after the cancellation of another kind: %v, want REFUSED", name, got)
			}
			cancel.Shared, cancel.Permits, cancel.Of = first.Shared, first.Permits, first.Of
			cancels()
			s.held(t, whole)
		})
	}
}

// A late request does not shorten a lease that its client was told of: all requests for a
// lease have its TTL.
func TestLateRequestShortensNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		a, b := replica(t, store), replica(t, store)
		short := &batonv1.AcquireRequest{Key: "k", Op: someOp, TtlMs: 1000}
		first := a.held(t, short)
		left, err := b.renews(t.Context(), first.Handle)
		if err != nil {
			t.Fatal(err)
		}
		if left != 900*time.Millisecond {
			t.Errorf("a renewal of a lease of 1 s: %v remain, want 900ms", left)
		}
		long := &batonv1.AcquireRequest{Key: "k", Op: someOp, TtlMs: 60_000, Retry: true}
		if got := b.stateOf(t, long); got != batonv1.AcquireResponse_REFUSED {
			t.Errorf("with another TTL: %v, want REFUSED", got)
		}
		short.Retry = true
		b.held(t, short)
		cancel := &batonv1.CancelRequest{Key: "k", Op: someOp, TtlMs: 1000}
		if _, err := (locksService{a}).Cancel(as(t.Context(), someone{}), cancel); err != nil {
			t.Fatal(err)
		}
		_, err = b.renews(t.Context(), first.Handle)
		wantCode(t, err, connect.CodeNotFound)

		// The default is the handle's, too.
		other := a.held(t, &batonv1.AcquireRequest{Key: "j"})
		if left, err := b.renews(t.Context(), other.Handle); err != nil || uint32(left.Milliseconds()) != other.RemainingMs {
			t.Errorf("renewed: %v, %v, after %d ms", left, err, other.RemainingMs)
		}
	})
}
