package once_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

// refused asserts that the key belongs to another request.
func refused(t *testing.T, err error, done bool) {
	t.Helper()
	var other *once.OtherRequestError
	if !errors.As(err, &other) || !errors.Is(err, once.ErrOtherRequest) || other.Key != "k" || other.Record.Done != done {
		t.Errorf("the same key with another fingerprint: %v", err)
	} else if strings.Contains(other.Record.Owner, "request:") {
		t.Errorf("the owner is shown as %q", other.Record.Owner)
	}
}

// The result of an operation is not given to another request with the same key.
func TestFingerprint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		long := strings.Repeat("ö", 64)
		r := newRunner(t, store, once.Config{Lock: baton.Config{Owner: long}})
		s := &says{text: "charged 10 EUR"}
		do := func(fn func(context.Context, once.Attempt) ([]byte, error), request ...string) error {
			got, err := r.Do(t.Context(), "k", fn, once.Fingerprint(request...))
			if err == nil && string(got) != s.text {
				t.Errorf("got %q", got)
			}
			return err
		}
		if err := do(s.run, "charge", "10"); err != nil {
			t.Fatal(err)
		}
		if err := do(never(t), "charge", "10"); err != nil {
			t.Errorf("the same request: %v", err)
		}
		refused(t, do(never(t), "charge", "9999"), true)
		refused(t, do(never(t), "charge1", "0"), true)
		expect(t, r, "k", s.text, never(t)) // of a caller without a fingerprint
		rec, err := r.Find(t.Context(), "k")
		if err != nil || !strings.HasPrefix(long, rec.Owner) || len(rec.Owner) < 90 {
			t.Errorf("found as %q's, %v", rec.Owner, err)
		}
		n, err := once.Do(t.Context(), r, "n", func(context.Context, once.Attempt) (int, error) { return 7, nil }, once.Fingerprint("a"))
		if err != nil || n != 7 {
			t.Errorf("%d, %v", n, err)
		}
		if _, err = once.Do(t.Context(), r, "n", func(context.Context, once.Attempt) (int, error) { return 8, nil }, once.Fingerprint("b")); !errors.Is(err, once.ErrOtherRequest) {
			t.Errorf("another value: %v", err)
		}
	})
}

// Nor may another request follow an attempt that was not finished, or overtake one
// that it waited for.
func TestFingerprintOfAnAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newRunner(t, memstore.New(), once.Config{})
		failure := errors.New("no network")
		if _, err := r.Do(t.Context(), "k", func(context.Context, once.Attempt) ([]byte, error) {
			time.Sleep(time.Minute)
			return nil, failure
		}, once.Fingerprint("a")); err != failure {
			t.Fatal(err)
		}
		_, err := r.Do(t.Context(), "k", never(t), once.Fingerprint("b"))
		refused(t, err, false)

		var waited error
		waiter := make(chan struct{})
		s := &says{text: "x"}
		if _, err := r.Do(t.Context(), "fresh", func(ctx context.Context, a once.Attempt) ([]byte, error) {
			go func() {
				_, waited = r.Do(context.Background(), "fresh", never(t), once.Fingerprint("b"))
				close(waiter)
			}()
			synctest.Wait() // it waits for the lock
			return nil, failure
		}, once.Fingerprint("a")); err != failure {
			t.Fatal(err)
		}
		<-waiter
		if !errors.Is(waited, once.ErrOtherRequest) {
			t.Errorf("the waiter: %v", waited)
		}
		if got, err := r.Do(t.Context(), "fresh", s.run, once.Fingerprint("a")); err != nil || string(got) != "x" || s.last.Attempts != 2 {
			t.Errorf("%q, %v, attempt %d", got, err, s.last.Attempts)
		}
	})
}

// Versions without fingerprints record none, and match every one.
func TestFingerprintOfAnOldVersion(t *testing.T) {
	for owner, matches := range map[string]bool{
		"host:1":                                true,
		"":                                      true,
		"host:1 request:short":                  true,
		"host:1 request:abcdefghijklmnopqrstu!": true,
		"host:1 request:abcdefghijklmnopqrstuv": false,
	} {
		store := memstore.New()
		a := driver.Attempt{Key: "k", Token: 1, Owner: owner}
		if _, err := store.BeginAttempt(t.Context(), a, time.Hour); err != nil {
			t.Fatal(err)
		}
		if _, err := store.FinishAttempt(t.Context(), a, driver.Outcome{Result: []byte("old")}, time.Hour); err != nil {
			t.Fatal(err)
		}
		got, err := newRunner(t, store, once.Config{}).Do(t.Context(), "k", never(t), once.Fingerprint("x"))
		if matches && (err != nil || string(got) != "old") || !matches && !errors.Is(err, once.ErrOtherRequest) {
			t.Errorf("owner %q: %q, %v", owner, got, err)
		}
	}
}

// Another program may have written the text of a final error.
func TestFinalErrorEscapesWhatWasRecorded(t *testing.T) {
	store := memstore.New()
	a := driver.Attempt{Key: "k", Token: 1}
	if _, err := store.BeginAttempt(t.Context(), a, time.Hour); err != nil {
		t.Fatal(err)
	}
	text := "no\x1b[2J\u009b\u202e\nlevel=ERROR"
	if _, err := store.FinishAttempt(t.Context(), a, driver.Outcome{Failed: true, Result: []byte(text)}, time.Hour); err != nil {
		t.Fatal(err)
	}
	_, err := newRunner(t, store, once.Config{}).Do(t.Context(), "k", never(t))
	var final *once.FinalError
	if !errors.As(err, &final) || final.Text != text {
		t.Fatal(err)
	}
	if s := err.Error(); strings.ContainsAny(s, "\x1b\u009b\u202e\n") || !strings.Contains(s, `no\x1b[2J`) {
		t.Errorf("shown as %q", s)
	}
}
