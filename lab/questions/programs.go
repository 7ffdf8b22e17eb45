package questions

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/lab"
)

// programs are the questions about how a program uses locks on one server.
var programs = []*lab.Question{
	{
		Name:  "reentrancy",
		Topic: lab.OneServer,
		Ask:   text("Reentrancy: a function that holds the lock calls another that takes it, too?", "可重入：持有锁的函数又调用了要加同一把锁的函数，会怎样？"),
		Answer: [3]lab.Text{
			text("SET NX knows no callers: the inner call waits for its own program, until the TTL ends the lock or for ever.", "SET NX 不认识调用者：内层等的是自己，直到 TTL 让锁过期，或者永远等下去。"),
			text("When the TTL ends it, the inner call gets the lock, and its release leaves the outer one, which believes that it holds, without a lock.", "锁到 TTL 过期之后，内层拿到锁；内层一释放，外层还以为自己持有，其实已经没有锁了。"),
			text("Baton fails at once with ErrNested if the lease's context is passed on, because that knows the lease; with Reentrant both hold together.", "只要把租约的 context 传下去，Baton 就立刻返回 ErrNested，因为 context 里带着租约；加上 Reentrant，内外两层共同持有。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"baton: TestNestedLockFailsAtOnce",
			"baton: TestReentrant",
		},
		Run: reentrancy,
	},
	{
		Name:  "opposite-orders",
		Topic: lab.OneServer,
		Ask:   text("Two programs lock the same two keys in opposite orders: a deadlock?", "两个程序以相反的顺序锁同样的两个键，会死锁吗？"),
		Answer: [3]lab.Text{
			text("Yes: each holds what the other waits for.", "会：每一个都持有对方在等的锁。"),
			text("Without renewal the TTL ends the locks of both while they believe in them; with renewal they wait for ever.", "不续期时，TTL 会让双方的锁过期，而双方还以为持有；续期时则永远等下去。"),
			text("Lock all keys in one call: Baton's LockAll takes them together, or in one order, whatever order you name them in.", "在一次调用里锁住所有的键：Baton 的 LockAll 一起加锁，或者总按同一个顺序加锁，不管你按什么顺序写。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"baton: TestLockAllCrowd"},
		Run:   oppositeOrders,
	},
}

func reentrancy(ctx context.Context, r *lab.Run) error {
	const ttl = 1500 * time.Millisecond
	server := startRedis(r)
	locks, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	naiveOuter, naiveInner := r.Lane(text("SET NX PX: outer", "SET NX PX：外层")), r.Lane(text("SET NX PX: inner", "SET NX PX：内层"))
	outer, inner := r.Lane(text("Baton: outer", "Baton：外层")), r.Lane(text("Baton: inner", "Baton：内层"))
	reentrant := r.Lane(text("Reentrant: inner", "Reentrant：内层"))
	r.Start()
	if _, err := setNX(server, "naive", "outer", ttl); err != nil {
		return err
	}
	naiveOuter.Begin(lab.Holds, lab.Text{})
	lease, err := locks.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	outer.Begin(lab.Holds, lab.Text{})
	if err := wait(ctx, 200*time.Millisecond); err != nil {
		return err
	}

	// The outer function calls the inner one with its context.
	called := r.Since()
	held := lease.Context(ctx)
	_, nested := locks.Lock(held, "order/42")
	refusedAfter := r.Since() - called
	inner.Mark(lab.Rejected, text("ErrNested, at once", "立刻 ErrNested"))
	second, err := locks.Lock(held, "order/42", baton.Reentrant())
	if err != nil {
		return err
	}
	reentrant.Mark(lab.Granted, text("the same lease", "同一个租约"))
	reentrant.Begin(lab.Shares, lab.Text{})

	naiveInner.Begin(lab.Waits, lab.Text{})
	if err := takeByHand(ctx, func() (bool, error) { return setNX(server, "naive", "inner", ttl) }); err != nil {
		return err
	}
	waited := r.Since() - called
	naiveOuter.Begin(lab.Wrong, lab.Text{})
	naiveInner.Begin(lab.Holds, lab.Text{})
	naiveInner.Mark(lab.Harm, text("the lock of the outer expired", "外层的锁过期了"))
	if err := second.Unlock(); err != nil {
		return err
	}
	reentrant.Mark(lab.Released, lab.Text{})
	reentrant.End()
	stands := lease.Err()
	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	outer.Mark(lab.Released, lab.Text{})
	outer.End()
	t := r.Table(text("the inner call", "内层调用"), text("answer", "结果"), text("after", "用时"))
	t.Add("SET NX PX", text("granted, as the outer lock has expired", "获得，因为外层的锁已过期"), lab.Textf("%d ms", "%d ms", waited.Milliseconds()))
	t.Add("Lock", "ErrNested", lab.Textf("%d ms", "%d ms", refusedAfter.Milliseconds()))
	t.Add("Lock, Reentrant", text("granted, and the outer lease stands", "获得，外层的租约仍然有效"), text("at once", "立刻"))
	if !errors.Is(nested, baton.ErrNested) || stands != nil || waited <= refusedAfter || waited < ttl/3 {
		return unexpected("the nested lock: %v after %v; by hand after %v; the outer lease: %v", nested, refusedAfter, waited, stands)
	}
	r.Say("The inner SET waited %d ms for its own program, until the outer lock expired. Baton answered ErrNested after %d ms.",
		"内层的 SET 等自己的程序等了 %d ms，直到外层的锁过期。Baton 在 %d ms 之后就返回了 ErrNested。", waited.Milliseconds(), refusedAfter.Milliseconds())
	return nil
}

func oppositeOrders(ctx context.Context, r *lab.Run) error {
	const ttl = 1500 * time.Millisecond
	const patience = 2 * time.Second
	server := startRedis(r)
	locks, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	names := []string{"A", "B"}
	var naive, single, all [2]*lab.Lane
	for i, n := range names {
		naive[i] = r.Lane(lab.Plain("SET NX PX: " + n))
	}
	for i, n := range names {
		single[i] = r.Lane(lab.Plain("Lock, Lock: " + n))
	}
	for i, n := range names {
		all[i] = r.Lane(lab.Plain("LockAll: " + n))
	}
	keys := [2][]string{{"x", "y"}, {"y", "x"}}

	// Each takes its first key, and asks for the second when both have their first.
	var errs [6]error
	var waited [2]time.Duration
	var ended [2]error
	var first, firstOfBaton, overOfBaton, working sync.WaitGroup
	var inside atomic.Int64 // the number of callers with all keys by LockAll
	var together atomic.Bool
	first.Add(2)
	firstOfBaton.Add(2)
	overOfBaton.Add(2)
	r.Start()
	bounded, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for i := range names {
		working.Go(func() {
			_, err := setNX(server, "naive/"+keys[i][0], names[i], ttl)
			naive[i].Begin(lab.Holds, lab.Plain(keys[i][0]))
			first.Done()
			first.Wait()
			err = errors.Join(err, wait(ctx, 200*time.Millisecond))
			naive[i].Begin(lab.Waits, lab.Plain(keys[i][1]))
			began := r.Since()
			errs[i] = errors.Join(err, takeByHand(ctx, func() (bool, error) { return setNX(server, "naive/"+keys[i][1], names[i], ttl) }))
			waited[i] = r.Since() - began
			naive[i].Begin(lab.Wrong, lab.Text{})
			naive[i].Mark(lab.Harm, lab.Textf("has %s, and lost %s", "得到 %s，却丢了 %s", keys[i][1], keys[i][0]))
			errs[i] = errors.Join(errs[i], wait(ctx, 400*time.Millisecond))
			naive[i].End()
		})
		working.Go(func() {
			lease, err := locks.Lock(ctx, "single/"+keys[i][0])
			single[i].Begin(lab.Holds, lab.Plain(keys[i][0]))
			firstOfBaton.Done()
			firstOfBaton.Wait()
			if err == nil {
				err = wait(ctx, 200*time.Millisecond)
				single[i].Begin(lab.Waits, lab.Plain(keys[i][1]))
				_, ended[i] = locks.Lock(bounded, "single/"+keys[i][1])
				single[i].Mark(lab.Harm, text("waits until its deadline", "等到自己的截止时间"))
				single[i].End()
			}
			overOfBaton.Done() // neither is released before both have ended
			overOfBaton.Wait()
			if lease != nil {
				err = errors.Join(err, lease.Unlock())
			}
			errs[2+i] = err
		})
		working.Go(func() {
			all[i].Begin(lab.Waits, lab.Text{})
			leases, err := locks.LockAll(ctx, []string{"all/" + keys[i][0], "all/" + keys[i][1]})
			if err != nil {
				errs[4+i] = err
				return
			}
			all[i].Begin(lab.Holds, lab.Plain("x, y"))
			together.Store(together.Load() || inside.Add(1) > 1)
			err = wait(ctx, 500*time.Millisecond)
			inside.Add(-1)
			errs[4+i] = errors.Join(err, leases.Unlock())
			all[i].Mark(lab.Released, lab.Text{})
			all[i].End()
		})
	}
	working.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		return err
	}
	t := r.Table(text("two keys in opposite orders", "以相反顺序锁两个键"), text("how it ends", "怎样结束"))
	t.Add(text("SET NX PX, not renewed", "SET NX PX，不续期"), lab.Textf("after %d ms the locks have expired", "%d ms 之后锁过期", min(waited[0], waited[1]).Milliseconds()))
	t.Add(text("Lock, Lock, renewed", "Lock、Lock，续期"), lab.Textf("never: a deadline of %d ms ended it", "不会结束：靠 %d ms 的截止时间结束", patience.Milliseconds()))
	t.Add("LockAll", text("no deadlock: one after the other", "没有死锁：先后执行"))
	if together.Load() || min(waited[0], waited[1]) < ttl/3 || !errors.Is(ended[0], context.DeadlineExceeded) || !errors.Is(ended[1], context.DeadlineExceeded) {
		return unexpected("SET waited %v; Lock, Lock: %v, %v; two at once by LockAll: %v", waited, ended[0], ended[1], together.Load())
	}
	r.Say("By SET both waited at least %d ms, until the locks expired that the other believed in. Two locks one after the other are a deadlock with Baton, too. LockAll had none.",
		"用 SET 时，双方至少等了 %d ms，直到对方以为持有的锁过期。先后加两把锁，用 Baton 也会死锁。LockAll 没有死锁。", min(waited[0], waited[1]).Milliseconds())
	return nil
}
