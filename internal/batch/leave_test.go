package batch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

func TestLeaving(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 1})
		over, cancel := context.WithCancel(t.Context())
		cancel()
		late := ask("late")
		if err := l.Do(over, late); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("a context that had ended: %v", err)
		}
		<-late.Done()

		sent, behind := ask("sent", Key{"k", Once | Serial}), ask("behind", Key{"k", Once | Serial})
		leaveSent, whenSent := l.call(t, sent)
		leaveBehind, whenBehind := l.call(t, behind)
		l.begin(t, ask("next", Key{"k", Once | Serial}))
		leaveSent()
		if err, _ := whenSent(); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("who leaves what was sent: %v", err)
		}
		select {
		case <-sent.Done():
			t.Error("it is done before it was answered")
		default:
		}
		if err := l.context(0); err != nil {
			t.Errorf("a send that its only caller has left: %v", err)
		}
		leaveBehind()
		if err, _ := whenBehind(); !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("who leaves what was not sent: %v", err)
		}
		<-behind.Done()
		l.end(0)
		<-sent.Done()
		l.want(t, "sent", "next")
		l.endAll()
	})
}

// A request that another one kept back goes when that one's caller leaves.
func TestLeavingMakesRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 2})
		k, other := Key{"k", Serial}, Key{"l", Order}
		l.begin(t, ask("first", k))
		ctx, cancel := context.WithCancel(t.Context())
		go l.Do(ctx, ask("both", k, other))
		synctest.Wait()
		l.begin(t, ask("second", other))
		l.want(t, "first")
		cancel()
		l.want(t, "first", "second")
		l.endAll()
	})
}

const grace = 250 * time.Millisecond

// A caller that leaves waits a little longer for a request that was sent, and not at
// all for one that was not.
func TestGrace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 1, Grace: grace})
		leave, outcome := l.call(t, ask("sent"))
		leaveNext, outcomeNext := l.call(t, ask("next"))
		leave()
		leaveNext()
		if err, returned := outcomeNext(); !returned || !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
			t.Errorf("who leaves what was not sent: %v, %v", err, returned)
		}
		time.Sleep(grace - 1)
		if err, returned := outcome(); returned {
			t.Fatalf("who leaves what was sent did not wait: %v", err)
		}
		l.end(0)
		if err, returned := outcome(); !returned || err != nil {
			t.Errorf("it was answered in time: %v, %v", err, returned)
		}
		time.Sleep(2 * grace)
		l.want(t, "sent")
	})
}

// A send goes on while a caller waits for it, and ends with the grace of the last.
func TestAllLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 1, Grace: grace})
		l.begin(t, ask("first"))
		request := ask("a")
		leaveA, outcomeA := l.call(t, request)
		leaveB, outcomeB := l.call(t, ask("b"))
		l.end(0)
		l.want(t, "first", "a+b")
		leaveA()
		time.Sleep(grace)
		if err, returned := outcomeA(); !returned || !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("the first who leaves: %v, %v", err, returned)
		}
		if err := l.context(1); err != nil {
			t.Errorf("one still waits: %v", err)
		}
		leaveB()
		time.Sleep(grace - 1)
		if err := l.context(1); err != nil {
			t.Errorf("one waits a little longer: %v", err)
		}
		time.Sleep(time.Nanosecond)
		if err, returned := outcomeB(); !returned || !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("the last who leaves: %v, %v", err, returned)
		}
		if err := l.context(1); !errors.Is(err, context.Canceled) {
			t.Errorf("nobody waits: %v, want context.Canceled", err)
		}
		select {
		case <-request.Done():
			t.Error("it is done before the send has ended")
		default:
		}
		l.begin(t, ask("next"))
		l.want(t, "first", "a+b")
		l.end(1)
		<-request.Done()
		l.want(t, "first", "a+b", "next")
		if err := l.context(2); err != nil {
			t.Errorf("the next one: %v", err)
		}
		l.endAll()
	})
}

// A caller that was answered while others in the send were not no longer waits.
func TestAllOthersLeave(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered, left := ask("answered"), ask("left")
		var sent context.Context
		gate := make(chan bool)
		b := New(Config[*request]{Max: 2, InFlight: 1, Grace: grace, Send: func(ctx context.Context, all []*request) {
			sent = ctx
			answered.Finish()
			<-gate
		}})
		l := &lab{Batcher: b}
		resume := b.Pause()
		_, outcome := l.call(t, answered)
		leave, outcomeLeft := l.call(t, left)
		resume()
		if err, returned := outcome(); !returned || err != nil {
			t.Errorf("who was answered: %v, %v", err, returned)
		}
		leave()
		time.Sleep(grace)
		if err, returned := outcomeLeft(); !returned || !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("who left: %v, %v", err, returned)
		}
		if sent.Err() == nil {
			t.Error("the send would go on for nobody")
		}
		close(gate)
	})
}

// The last caller leaves when the request was taken and its send has not begun.
func TestLeavingBeforeTheSendBegins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var begin func()
		var sent context.Context
		b := New(Config[*request]{
			Max: 1, InFlight: 1, Grace: grace, Go: func(f func()) { begin = f },
			Send: func(ctx context.Context, _ []*request) { sent = ctx },
		})
		l := &lab{Batcher: b}
		r := ask("a")
		leave, outcome := l.call(t, r)
		leave()
		time.Sleep(grace)
		if err, returned := outcome(); !returned || !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
			t.Errorf("%v, %v, want ErrUnknown and the context's error", err, returned)
		}
		begin()
		<-r.Done()
		if sent.Err() == nil {
			t.Error("the send would go on for nobody")
		}
	})
}

// The context of a send ends after its time, counted from when it was made up, with
// that of all sends, and with the send.
func TestContextOfASend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		all, end := context.WithCancel(context.WithValue(t.Context(), name{}, "all"))
		l := newLab(Config[*request]{Max: 1, InFlight: 2, Context: all, Timeout: time.Second})
		l.begin(t, ask("a"))
		time.Sleep(time.Second / 2)
		l.begin(t, ask("b"), ask("c"))
		if l.contexts[0].Value(name{}) != "all" {
			t.Error("the context of a send is not that of all")
		}
		time.Sleep(time.Second / 2)
		if a, b := l.context(0), l.context(1); !errors.Is(a, context.DeadlineExceeded) || b != nil {
			t.Errorf("after a second: %v, after half of one: %v", a, b)
		}
		l.end(1)
		if err := l.context(1); !errors.Is(err, context.Canceled) {
			t.Errorf("of a send that has ended: %v", err)
		}
		l.want(t, "a", "b", "c")
		if err := l.context(2); err != nil {
			t.Errorf("of the next one: %v", err)
		}
		end()
		if err := l.context(2); !errors.Is(err, context.Canceled) {
			t.Errorf("when that of all has ended: %v", err)
		}
		l.endAll()
	})
}

// Requests that wait and that come after Close are refused. Sends under way are
// answered, also to a caller that is about to leave.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		started := 0
		l := newLab(Config[*request]{Max: 1, InFlight: 2, Grace: grace, Go: func(f func()) { started++; go f() }})
		_, outcomeStays := l.call(t, ask("stays"))
		leave, outcomeLeaves := l.call(t, ask("leaves"))
		waits := ask("waits")
		leaveWaits, outcomeWaits := l.call(t, waits)
		_, outcomeToo := l.call(t, ask("too"))
		leave()
		l.Close()
		leaveWaits()
		for _, outcome := range []func() (error, bool){outcomeWaits, outcomeToo} {
			if err, returned := outcome(); !returned || err != driver.ErrClosed {
				t.Errorf("who waits: %v, %v, want driver.ErrClosed", err, returned)
			}
		}
		<-waits.Done()
		late := ask("late")
		if err := l.Do(t.Context(), late); err != driver.ErrClosed {
			t.Errorf("who comes later: %v, want driver.ErrClosed", err)
		}
		<-late.Done()
		l.end(0)
		l.end(1)
		for _, outcome := range []func() (error, bool){outcomeStays, outcomeLeaves} {
			if err, returned := outcome(); !returned || err != nil {
				t.Errorf("what was under way: %v, %v", err, returned)
			}
		}
		l.Close()
		l.want(t, "stays", "leaves")
		if started != 2 || l.Waiting() != 0 {
			t.Errorf("Go was called %d times, %d wait", started, l.Waiting())
		}
	})
}

// A caller leaves a request that is not sent at the instant of Close: whichever is
// first, it is not sent.
func TestLeavingAtClose(t *testing.T) {
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			l := newLab(Config[*request]{Max: 1, InFlight: 1, Grace: grace})
			l.begin(t, ask("sent"))
			leave, outcome := l.call(t, ask("waits"))
			go leave()
			go l.Close()
			if err, returned := outcome(); !returned || err != driver.ErrClosed && !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrUnknown) {
				t.Errorf("%v, %v", err, returned)
			}
			l.endAll()
			l.want(t, "sent")
		})
	}
}

// One caller leaves, and then the other one is answered before the send ends: nobody
// waits for it any more.
func TestTheLastIsAnswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLab(Config[*request]{Max: 10, InFlight: 1, Grace: time.Second})
		l.begin(t, ask("first"))
		a, b := ask("a"), ask("b")
		l.begin(t, a)
		leaveB, whenB := l.call(t, b)
		l.end(0)
		l.want(t, "first", "a+b")
		leaveB()
		time.Sleep(2 * time.Second)
		if err, _ := whenB(); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("b: %v, want ErrUnknown", err)
		}
		if err := l.context(1); err != nil {
			t.Errorf("a waits, and the send has ended: %v", err)
		}
		a.Finish()
		if l.context(1) == nil {
			t.Error("a is answered and b has left, and the send goes on")
		}
		l.endAll()
	})
}
