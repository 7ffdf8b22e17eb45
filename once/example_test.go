package once_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

// The same order is redeemed twice: points are booked once, and both callers get
// the same receipt.
func Example() {
	ctx := context.Background()
	ops, err := once.New(memstore.New(), once.Config{}) // or a store that processes share
	if err != nil {
		fmt.Println(err)
		return
	}
	type receipt struct{ Order, Points int }
	for range 2 {
		r, err := once.Do(ctx, ops, "redeem/4711", func(context.Context, once.Attempt) (receipt, error) {
			fmt.Println("booking")
			return receipt{4711, 100}, nil
		})
		fmt.Println(r, err)
	}
	// Output:
	// booking
	// {4711 100} <nil>
	// {4711 100} <nil>
}

// account is a resource that checks tokens: for each operation it remembers the
// highest one that it has seen, and compares in the step in which it changes, which
// in a database is the same transaction. What it books for an operation replaces
// what it booked before, so that exactly the last attempt counts.
type account struct {
	points int
	fence  map[string]int64
	booked map[string]int
}

var errStale = errors.New("a later attempt was here already")

// book sets the points of op, whatever earlier attempts have booked for op.
func (a *account) book(op string, token int64, points int) error {
	if token < a.fence[op] {
		return errStale
	}
	a.fence[op] = token
	a.points += points - a.booked[op]
	a.booked[op] = points
	return nil
}

// Which token do I pass? That of the attempt. Where is it checked? Where the effect
// takes place. Here an attempt is stopped before it books, another one does the
// work, and the first continues, long after its lock was lost.
func ExampleAttempt() {
	ctx := context.Background()
	store := memstore.New()
	acct := &account{fence: map[string]int64{}, booked: map[string]int{}}
	ops, err := once.New(store, once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	redeem := func(_ context.Context, a once.Attempt) ([]byte, error) {
		if a.Attempts == 1 {
			meanwhile(store, a.Key, func(_ context.Context, next once.Attempt) ([]byte, error) {
				err := acct.book(next.Key, next.Token, 100)
				fmt.Println("the next attempt:", err)
				return []byte("100 points"), err
			})
		}
		err := acct.book(a.Key, a.Token, 100)
		fmt.Println("the first attempt:", err)
		return []byte("100 points"), err
	}
	_, err = ops.Do(ctx, "redeem/4711", redeem)
	fmt.Println(errors.Is(err, errStale))
	receipt, err := ops.Do(ctx, "redeem/4711", redeem)
	fmt.Printf("%s %v\n", receipt, err)
	// Output:
	// the next attempt: <nil>
	// the first attempt: a later attempt was here already
	// true
	// 100 points <nil>
}

// meanwhile is what happens while this process is stopped for longer than its
// lock lasts: another one gets the lock.
func meanwhile(store *memstore.Store, key string, fn func(context.Context, once.Attempt) ([]byte, error)) {
	ctx := context.Background()
	locks, err := baton.New(store, baton.Config{})
	if err == nil {
		_, err = locks.Break(ctx, once.LockPrefix+key)
	}
	if err != nil {
		panic(err)
	}
	other, err := once.New(store, once.Config{})
	if err == nil {
		_, err = other.Do(ctx, key, fn)
	}
	if err != nil {
		panic(err)
	}
}

// What if I cannot change the resource? Give it the key of the operation if it can
// refuse the same key twice. If it can only be asked, ask it when an earlier
// attempt has begun.
func ExampleAttempt_ask() {
	ctx := context.Background()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var sent []string // by a service that does not know tokens
	send := func(_ context.Context, a once.Attempt) ([]byte, error) {
		if a.Attempts > 1 && len(sent) > 0 {
			fmt.Println("attempt", a.Attempts, "finds that it was sent already")
			return []byte(sent[0]), nil
		}
		sent = append(sent, "letter to alice")
		if a.Attempts == 1 {
			return nil, errors.New("connection reset") // after the effect
		}
		return []byte(sent[0]), nil
	}
	for range 3 {
		letter, err := ops.Do(ctx, "welcome/alice", send)
		fmt.Printf("%q %v\n", letter, err)
	}
	fmt.Println(len(sent), "sent")
	// Output:
	// "" connection reset
	// attempt 2 finds that it was sent already
	// "letter to alice" <nil>
	// "letter to alice" <nil>
	// 1 sent
}

// What if the process stops here? Between its effect and the record of it: the next
// caller runs the function again, with a higher token, and can see that. The result
// of the first attempt, when that continues, is not recorded.
func ExampleUnrecordedError() {
	ctx := context.Background()
	store := memstore.New()
	ops, err := once.New(store, once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = ops.Do(ctx, "report/may", func(_ context.Context, a once.Attempt) ([]byte, error) {
		written := []byte("report by attempt 1") // the effect
		meanwhile(store, a.Key, func(_ context.Context, next once.Attempt) ([]byte, error) {
			return fmt.Append(nil, "report by attempt ", next.Attempts), nil
		})
		return written, nil
	})
	if lost, ok := errors.AsType[*once.UnrecordedError](err); ok {
		fmt.Printf("not recorded: %q\n", lost.Result)
		fmt.Printf("recorded:     %q\n", lost.Instead.Result)
	}
	// Output:
	// not recorded: "report by attempt 1"
	// recorded:     "report by attempt 2"
}

// A server that does not let its clients wait answers at once that the request is under
// way, and for how long that may last.
func ExampleRunner_TryDo() {
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var pay http.HandlerFunc
	post := func(who string) {
		w, r := httptest.NewRecorder(), httptest.NewRequest("POST", "/payments", nil)
		r.Header.Set("Idempotency-Key", "4711")
		pay(w, r)
		fmt.Println(who, w.Code, w.Body)
	}
	pay = func(w http.ResponseWriter, r *http.Request) {
		receipt, err := ops.TryDo(r.Context(), "pay/"+r.Header.Get("Idempotency-Key"), func(context.Context, once.Attempt) ([]byte, error) {
			post("meanwhile")
			return []byte("paid"), nil
		})
		held, underWay := errors.AsType[*baton.HeldError](err)
		switch {
		case underWay:
			w.Header().Set("Retry-After", strconv.Itoa(int(held.Remaining.Seconds())+1))
			w.WriteHeader(http.StatusConflict)
			fmt.Fprint(w, "under way")
		case err != nil:
			w.WriteHeader(http.StatusServiceUnavailable)
		default:
			_, _ = w.Write(receipt)
		}
	}
	post("first")
	post("later")
	// Output:
	// meanwhile 409 under way
	// first 200 paid
	// later 200 paid
}

// Metrics are made of events. A label is never a key, of which there is no end.
func ExampleEvents() {
	ctx := context.Background()
	running, failed, replayed := 0, 0, 0 // a program with several goroutines needs atomic ones
	ops, err := once.New(memstore.New(), once.Config{Events: &once.Events{
		Began: func(context.Context, once.OperationEvent) { running++ },
		Finished: func(_ context.Context, e once.OperationEvent) {
			running--
			if e.Failed {
				failed++
			}
		},
		Superseded: func(context.Context, once.OperationEvent) { running-- },
		Replayed:   func(context.Context, once.OperationEvent) { replayed++ },
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	for try := range 4 {
		_, _ = ops.Do(ctx, "report/may", func(context.Context, once.Attempt) ([]byte, error) {
			if try == 0 {
				return nil, errors.New("disk full")
			}
			return []byte("report"), nil
		})
	}
	fmt.Println(running, "running,", failed, "failed,", replayed, "replayed")
	// Output:
	// 0 running, 1 failed, 2 replayed
}

// What was recorded under keys with a prefix, and what was begun and not finished.
func ExampleRunner_List() {
	ctx := context.Background()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for key, err := range map[string]error{"report/may": nil, "report/june": errors.New("disk full"), "welcome/alice": nil} {
		_, _ = ops.Do(ctx, key, func(context.Context, once.Attempt) ([]byte, error) { return nil, err })
	}
	for op, err := range ops.List(ctx, "report/") {
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(op.Key, op.Done, op.Attempts)
	}
	// Unordered output:
	// report/may true 1
	// report/june false 1
}

// A policy for all operations: whether an error is recorded is decided in one place.
func ExampleFinal_policy() {
	ctx := context.Background()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	type fn = func(context.Context, once.Attempt) ([]byte, error)
	errDeclined := errors.New("the card was declined")
	recorded := func(f fn) fn {
		return func(ctx context.Context, a once.Attempt) ([]byte, error) {
			result, err := f(ctx, a)
			if errors.Is(err, errDeclined) {
				err = once.Final(err)
			}
			return result, err
		}
	}
	for _, e := range []error{errors.New("connection reset"), errDeclined, nil} {
		_, err := ops.Do(ctx, "pay/4711", recorded(func(context.Context, once.Attempt) ([]byte, error) {
			fmt.Println("charging the card")
			return nil, e
		}))
		fmt.Println(err)
	}
	// Output:
	// charging the card
	// connection reset
	// charging the card
	// once: operation "pay/4711" has failed for good: the card was declined
	// once: operation "pay/4711" has failed for good: the card was declined
}

// An error that another attempt cannot cure is an outcome, too.
func ExampleFinal() {
	ctx := context.Background()
	ops, err := once.New(memstore.New(), once.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 2 {
		_, err := ops.Do(ctx, "redeem/4712", func(context.Context, once.Attempt) ([]byte, error) {
			fmt.Println("looking at the coupon")
			return nil, once.Final(errors.New("the coupon has expired"))
		})
		fmt.Println(errors.Is(err, once.ErrFinal), err)
	}
	// Output:
	// looking at the coupon
	// true once: operation "redeem/4712" has failed for good: the coupon has expired
	// true once: operation "redeem/4712" has failed for good: the coupon has expired
}
