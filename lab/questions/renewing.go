package questions

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

// renewing are the questions about how long a lock lasts.
var renewing = []*lab.Question{
	{
		Name:  "ttl-shorter-than-work",
		Topic: lab.Holding,
		Ask:   text("The work takes longer than the TTL: what happens, and what does a watchdog do?", "业务执行时间超过锁的 TTL，会怎样？看门狗做什么？"),
		Answer: [3]lab.Text{
			text("Without renewal the lock expires in the middle of the work, and the next caller gets it: two work at once.", "不续期的话，工作到一半锁就过期了，下一个调用者拿到锁：两个同时在工作。"),
			text("A longer TTL only moves the problem, and after a crash everybody waits that much longer.", "加大 TTL 只是推迟问题，而且崩溃之后大家要等得更久。"),
			text("Baton renews the lease every third of its TTL as long as the holder runs, as a watchdog does. It ends with the holder: the TTL bounds the wait after a crash, not the work.", "只要持有者还在运行，Baton 每隔三分之一 TTL 就续期一次，这就是看门狗；它与持有者同生共死：TTL 限制的是崩溃后的等待，不是工作时间。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"drivertest: renewal prolongs", "drivertest: a batch renews every claim for the whole TTL", "agent: TestProcessThatIsKilled"},
		Run:   ttlShorterThanWork,
	},
	{
		Name:  "stuck-holder",
		Topic: lab.Holding,
		Ask:   text("The work hangs, and the watchdog renews for ever: what frees the lock?", "业务卡死，看门狗却一直续期：锁怎样才能释放？"),
		Answer: [3]lab.Text{
			text("Nothing: a watchdog sees that the process lives, not that the work goes on. The others wait as long as the work hangs.", "不会释放：看门狗只知道进程还活着，不知道业务有没有进展。业务卡多久，别人就等多久。"),
			text("The hold needs a bound of its own: Baton's MaxHold ends the lease of a live holder and cancels its context. The lock is free when the holder unlocks it, or at most one TTL later.", "持有时间要另设上限：Baton 的 MaxHold 到了就结束租约，哪怕持有者还活着，并取消它的 context。持有者一解锁，锁就可用；不解锁，最多再等一个 TTL。"),
			text("Work that hangs does not look at its context. When it wakes up and writes, only the resource can refuse: the guard does.", "卡死的业务不会去看 context。等它恢复过来再写入，只有资源能拒绝：守卫就会拒绝。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"baton: TestMaxHold",
			"guard: TestRedisInterleaved",
		},
		Run: stuckHolder,
	},
}

// inside has the lanes of the callers that work at the same time.
type inside struct {
	mu    sync.Mutex
	lanes []*lab.Lane
	most  int
}

// enter marks the callers inside as wrong: another has their lock.
func (i *inside) enter(l *lab.Lane) {
	i.mu.Lock()
	defer i.mu.Unlock()
	for _, before := range i.lanes {
		before.Begin(lab.Wrong, lab.Text{})
	}
	l.Begin(lab.Holds, lab.Text{})
	i.lanes = append(i.lanes, l)
	i.most = max(i.most, len(i.lanes))
}

func (i *inside) leave(l *lab.Lane) {
	i.mu.Lock()
	defer i.mu.Unlock()
	l.End()
	i.lanes = slices.DeleteFunc(i.lanes, func(x *lab.Lane) bool { return x == l })
}

func ttlShorterThanWork(ctx context.Context, r *lab.Run) error {
	const ttl, work = 500 * time.Millisecond, 900 * time.Millisecond
	server := startRedis(r)
	locks, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	// Each takes one from the stock: it reads, works, and writes.
	take := func(stock string) error {
		left, err := server.Do("GET", stock)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(left)
		if err != nil {
			return err
		}
		if err := wait(ctx, work); err != nil {
			return err
		}
		_, err = server.Do("SET", stock, strconv.Itoa(n-1))
		return err
	}
	var naive, renewed inside
	byHand := func(name string, l *lab.Lane) error {
		l.Begin(lab.Waits, lab.Text{})
		if err := takeByHand(ctx, func() (bool, error) { return setNX(server, "naive", name, ttl) }); err != nil {
			return err
		}
		naive.enter(l)
		defer naive.leave(l)
		if err := take("naive stock"); err != nil {
			return err
		}
		_, err := server.Do("EVAL", compareAndDelete, "1", "naive", name)
		return err
	}
	byBaton := func(name string, l *lab.Lane) error {
		l.Begin(lab.Waits, lab.Text{})
		return locks.Do(ctx, "renewed", func(context.Context, *baton.Lease) error {
			renewed.enter(l)
			defer renewed.leave(l)
			return take("renewed stock")
		})
	}
	names := []string{"A", "B", "C"}
	var naiveLanes, renewedLanes []*lab.Lane
	for _, n := range names {
		naiveLanes = append(naiveLanes, r.Lane(lab.Plain("SET NX PX: "+n)))
	}
	for _, n := range names {
		renewedLanes = append(renewedLanes, r.Lane(lab.Plain("Baton: "+n)))
	}
	for _, stock := range []string{"naive stock", "renewed stock"} {
		if _, err := server.Do("SET", stock, "10"); err != nil {
			return err
		}
	}
	r.Start()
	errs := make([]error, 2*len(names))
	var all sync.WaitGroup
	for i, n := range names {
		if err := wait(ctx, 30*time.Millisecond); err != nil { // in the order of their names
			return err
		}
		all.Go(func() { errs[i] = byHand(n, naiveLanes[i]) })
		all.Go(func() { errs[len(names)+i] = byBaton(n, renewedLanes[i]) })
	}
	all.Wait()
	naiveLeft, err1 := server.Do("GET", "naive stock")
	renewedLeft, err2 := server.Do("GET", "renewed stock")
	if err := errors.Join(append(errs, err1, err2)...); err != nil {
		return err
	}
	t := r.Table(text("lock with a TTL of 500 ms, work of 900 ms", "TTL 500 ms 的锁，工作 900 ms"), text("at the same time", "同时工作"), text("stock: 10 − 3 =", "库存：10 − 3 ="))
	t.Add("SET NX PX", naive.most, naiveLeft)
	t.Add(text("Baton, renewed", "Baton，续期"), renewed.most, renewedLeft)
	if naive.most < 2 || renewed.most != 1 || naiveLeft == "7" || renewedLeft != "7" {
		return unexpected("%d and %d at the same time, the stock is %s and %s", naive.most, renewed.most, naiveLeft, renewedLeft)
	}
	r.Say("Without renewal up to %d worked at the same time, and three purchases took the stock from 10 to %s. With renewal one at a time, from 10 to %s.",
		"不续期时最多 %d 个同时工作，三次购买之后库存从 10 变成 %s。续期时每次只有一个，库存从 10 变成 %s。", naive.most, naiveLeft, renewedLeft)
	return nil
}

// hangs is one kind of lock whose holder A hangs while B waits. All times are since A asked
// for the lock.
type hangs struct {
	key     string
	name    lab.Text
	maxHold time.Duration
	stops   bool // the work of A ends with its lease, like a call with the lease's context

	laneA, laneB, stock *lab.Lane

	renewals           atomic.Int64
	told, waited       time.Duration // told is 0 if A was not told while it hung
	lost               error         // the error that A was told
	refused            error         // by the guard, of A's write when its work continues
	bare, guarded      string        // the values afterwards
	tokenOfA, tokenOfB int64
}

func stuckHolder(ctx context.Context, r *lab.Run) error {
	const ttl, longest, hang = 900 * time.Millisecond, 1200 * time.Millisecond, 4 * time.Second
	server := startRedis(r)
	ways := []*hangs{
		{key: "unbounded", name: text("no bound", "不设上限")},
		{key: "bounded", name: text("MaxHold, A hangs", "MaxHold，A 卡死"), maxHold: longest},
		{key: "heeded", name: text("MaxHold, A stops", "MaxHold，A 停手"), maxHold: longest, stops: true},
	}
	for _, w := range ways {
		w.laneA = r.Lane(lab.Text{EN: w.name.EN + ": A", ZH: w.name.ZH + "：A"})
		w.laneB = r.Lane(lab.Text{EN: w.name.EN + ": B", ZH: w.name.ZH + "：B"})
		if !w.stops {
			w.stock = r.Lane(text("its stock, guard", "它的库存，守卫"))
		}
	}
	r.Start()
	errs := make([]error, len(ways))
	var all sync.WaitGroup
	for i, w := range ways {
		all.Go(func() { errs[i] = w.run(ctx, r, server, ttl, hang) })
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}

	unbounded, bounded, heeded := ways[0], ways[1], ways[2]
	t := r.Table(text("TTL 900 ms, MaxHold 1200 ms, A hangs for 4 s", "TTL 900 ms，MaxHold 1200 ms，A 卡死 4 s"), text("renewals", "续期次数"),
		text("A is told after", "A 何时得知"), text("B has the lock after", "B 何时拿到锁"), text("write of A after 4 s, by the guard", "A 在 4 s 后写入，守卫"))
	ms := func(d time.Duration) lab.Text { return lab.Textf("%d ms", "%d ms", d.Milliseconds()) }
	t.Add(unbounded.name, unbounded.renewals.Load(), text("never", "没有"), ms(unbounded.waited), text("accepted: A still holds", "接受：A 还持有锁"))
	t.Add(bounded.name, bounded.renewals.Load(), ms(bounded.told), ms(bounded.waited), text("refused", "拒绝"))
	t.Add(heeded.name, heeded.renewals.Load(), ms(heeded.told), ms(heeded.waited), text("none: A has stopped", "没有：A 已停手"))
	t = r.Table(text("the stock after the late write of A", "A 迟到写入之后的库存"), text("value", "值"))
	t.Add(text("without a token", "不查令牌"), bounded.bare)
	t.Add(text("with the guard", "带守卫"), bounded.guarded)

	overheld := func(err error) bool {
		var l *baton.LostError
		return errors.As(err, &l) && l.Cause == baton.Overheld
	}
	switch {
	case unbounded.told != 0 || unbounded.lost != nil || unbounded.waited < hang || unbounded.renewals.Load() < 4 || unbounded.refused != nil:
		return unexpected("no bound: told after %v (%v), B had to wait %v, %d renewals, the guard: %v", unbounded.told, unbounded.lost, unbounded.waited, unbounded.renewals.Load(), unbounded.refused)
	case !overheld(bounded.lost) || bounded.told < longest || bounded.told >= bounded.waited || bounded.waited > longest+ttl+time.Second ||
		!errors.Is(bounded.refused, guard.ErrStale) || bounded.bare != "from A" || bounded.guarded != "from B" || bounded.tokenOfB <= bounded.tokenOfA:
		return unexpected("MaxHold: told after %v (%v), B had to wait %v, tokens %d and %d, the guard: %v, the stock %q and %q", bounded.told, bounded.lost, bounded.waited, bounded.tokenOfA, bounded.tokenOfB, bounded.refused, bounded.bare, bounded.guarded)
	case !overheld(heeded.lost) || heeded.told < longest || heeded.waited < heeded.told || heeded.waited >= bounded.waited:
		return unexpected("MaxHold, and A stops: told after %v (%v), B had to wait %v, and %v where A hangs", heeded.told, heeded.lost, heeded.waited, bounded.waited)
	}
	r.Say("Without a bound the lock was renewed %d times for work that did not go on, and B had it after %d ms, when the work went on again. With MaxHold B had it after %d ms, and after %d ms where A unlocked when it was told.",
		"不设上限时，业务没有进展，锁却续期了 %d 次，直到 %d ms 业务恢复，B 才拿到锁。设了 MaxHold，B 在 %d ms 拿到锁；如果 A 得知后立即解锁，则是 %d ms。",
		unbounded.renewals.Load(), unbounded.waited.Milliseconds(), bounded.waited.Milliseconds(), heeded.waited.Milliseconds())
	return nil
}

func (w *hangs) run(ctx context.Context, r *lab.Run, server *testserver.RedisServer, ttl, hang time.Duration) error {
	url := "redis://" + server.Addr
	locks, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl, MaxHold: w.maxHold, Events: &baton.Events{
		Renewed: func(_ context.Context, e baton.RenewalEvent) {
			if e.Failed == 0 {
				w.renewals.Add(1)
			}
		},
	}})
	if err != nil {
		return err
	}
	others, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	write := func(l *baton.Lease, value string) (refused, failed error) {
		if _, err := server.Do("SET", w.key+"/bare", value); err != nil {
			return nil, err
		}
		_, err := guardOn(server).Do(ctx, w.key+"/guarded", guard.Of(l), "SET", value)
		if err == nil || errors.Is(err, guard.ErrStale) {
			return err, nil
		}
		return nil, err
	}
	began := r.Since()
	a, err := locks.Lock(ctx, w.key)
	if err != nil {
		return err
	}
	awake := time.After(hang)
	w.tokenOfA = a.Token()
	w.laneA.Begin(lab.Holds, text("the work hangs", "业务卡死"))
	w.laneB.Begin(lab.Waits, lab.Text{})

	// B writes as soon as it has the lock.
	var b *baton.Lease
	var errOfB error
	var group sync.WaitGroup
	group.Go(func() {
		if b, errOfB = others.Lock(ctx, w.key); errOfB != nil {
			return
		}
		w.waited = r.Since() - began
		w.tokenOfB = b.Token()
		w.laneB.Begin(lab.Holds, lab.Text{})
		w.laneB.Mark(lab.Granted, lab.Text{})
		var refused error
		if refused, errOfB = write(b, "from B"); refused != nil {
			errOfB = refused
		}
		if w.stock != nil {
			w.stock.Mark(lab.Accepted, text("B", "B"))
		}
	})

	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-awake: // the lease was not ended
	case <-a.Done():
		w.told, w.lost = r.Since()-began, a.Err()
		w.laneA.Mark(lab.Told, text("MaxHold", "MaxHold"))
		w.laneA.Begin(lab.Paused, lab.Text{})
		if !w.stops {
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case <-awake:
			}
		}
	}
	if w.stops {
		w.laneA.End()
	} else {
		// The work continues, and writes.
		var failed error
		if w.refused, failed = write(a, "from A"); failed != nil {
			return failed
		}
		if w.refused != nil {
			w.stock.Mark(lab.Rejected, text("A: its token is lower", "A：令牌较小"))
		} else {
			w.stock.Mark(lab.Accepted, text("A", "A"))
		}
		var err1, err2 error
		w.bare, err1 = server.Do("GET", w.key+"/bare")
		w.guarded, err2 = server.Do("GET", w.key+"/guarded")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
	}
	if err := a.Unlock(); err != nil && !errors.Is(err, baton.ErrLost) {
		return err
	}
	if w.lost == nil {
		w.laneA.Mark(lab.Released, lab.Text{})
	}
	w.laneA.End()
	group.Wait()
	if errOfB != nil {
		return errOfB
	}
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	w.laneB.End()
	return b.Unlock()
}
