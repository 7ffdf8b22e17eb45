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
	"github.com/batonhq/baton/internal/lab"
)

// renewing are the questions about how long a lock lasts.
var renewing = []*lab.Question{
	{
		Name:  "ttl-shorter-than-work",
		Topic: lab.Holding,
		Ask:   text("The work takes longer than the TTL: what happens?", "业务执行时间超过锁的 TTL，会怎样？"),
		Answer: [3]lab.Text{
			text("Without renewal the lock expires in the middle of the work, and the next caller gets it: two work at once.", "不续期的话，工作到一半锁就过期了，下一个调用者拿到锁：两个同时在工作。"),
			text("A longer TTL only moves the problem, and after a crash everybody waits that much longer.", "加大 TTL 只是推迟问题，而且崩溃之后大家要等得更久。"),
			text("Baton renews the lease every third of its TTL as long as the holder runs: the TTL bounds the wait after a crash, not the work.", "只要持有者还在运行，Baton 每隔三分之一 TTL 就续期一次：TTL 限制的是崩溃后的等待，不是工作时间。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "drivertest/exclusion.go", Line: `name: "renewal prolongs",`}},
		Run:    ttlShorterThanWork,
	},
	{
		Name:  "watchdog",
		Topic: lab.Holding,
		Ask:   text("How does a watchdog keep a lock, and what does it do after a crash?", "看门狗怎样续期？持有者崩溃之后呢？"),
		Answer: [3]lab.Text{
			text("It sets the expiry again every third of the TTL, so the lock does not come near its end while the holder runs and reaches the store.", "每隔三分之一 TTL 重新设置过期时间；只要持有者在运行、又连得上存储，锁就不会临近过期。"),
			text("It lives in the holder's process: a crash ends both, and the lock is free within one TTL.", "看门狗就在持有者的进程里：进程崩溃，续期也随之停止，锁最迟在一个 TTL 内释放。"),
			text("Baton's Locker does it for all its leases, with one request for many.", "Baton 的 Locker 为自己的所有租约续期，一次请求续很多个。"),
		},
		Needs: []lab.Server{lab.Redis},
		Proofs: []lab.Proof{
			{File: "drivertest/exclusion.go", Line: `name: "renewal prolongs",`},
			{File: "drivertest/batch.go", Line: `name: "a batch renews every claim for the whole TTL",`},
		},
		Run: watchdog,
	},
}

// inside knows who works at the same time.
type inside struct {
	mu    sync.Mutex
	lanes []*lab.Lane
	most  int
}

// enter makes those who are inside wrong: another has their lock.
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

func watchdog(ctx context.Context, r *lab.Run) error {
	const ttl, work = 900 * time.Millisecond, 2500 * time.Millisecond
	server := startRedis(r)
	var renewals atomic.Int64
	locks, crash, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{TTL: ttl, Events: &baton.Events{
		Renewed: func(_ context.Context, e baton.RenewalEvent) {
			if e.Failed == 0 {
				renewals.Add(1)
			}
		},
	}})
	if err != nil {
		return err
	}
	naive := &lab.Line{Name: text("SET NX PX, not renewed", "SET NX PX，不续期")}
	renewed := &lab.Line{Name: text("Baton", "Baton")}
	r.Start()
	if _, err := setNX(server, "naive", "A", ttl); err != nil {
		return err
	}
	if _, err := locks.Lock(ctx, "renewed"); err != nil {
		return err
	}

	// left is what PTTL answers: -2 if there is no lock.
	left := func(key string) (float64, error) {
		answer, err := server.Do("PTTL", key)
		if err != nil {
			return 0, err
		}
		ms, err := strconv.ParseFloat(answer, 64)
		return max(ms, 0), err
	}
	var naiveFree, crashed, renewedFree time.Duration
	least := float64(ttl.Milliseconds())
	for renewedFree == 0 {
		ofNaive, err1 := left("naive")
		ofRenewed, err2 := left("renewed")
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		now := r.Since()
		naive.Points = append(naive.Points, [2]float64{float64(now.Milliseconds()), ofNaive})
		renewed.Points = append(renewed.Points, [2]float64{float64(now.Milliseconds()), ofRenewed})
		if ofNaive == 0 && naiveFree == 0 {
			naiveFree = now
		}
		switch {
		case crashed == 0 && now < work:
			least = min(least, ofRenewed)
		case crashed == 0:
			crash()
			crashed = r.Since()
		case ofRenewed == 0:
			renewedFree = now
		}
		if err := wait(ctx, 40*time.Millisecond); err != nil {
			return err
		}
	}
	r.Chart(&lab.Chart{X: lab.Textf("milliseconds; the holder crashes at %d", "毫秒；持有者在 %d 时崩溃", crashed.Milliseconds()), Y: text("PTTL of the lock, ms", "锁的 PTTL，毫秒"), Lines: []*lab.Line{renewed, naive}})
	t := r.Table(text("lock with a TTL of 900 ms", "TTL 900 ms 的锁"), text("renewals", "续期次数"), text("gone after", "多久后消失"))
	t.Add(text("SET NX PX, not renewed", "SET NX PX，不续期"), 0, lab.Textf("%d ms, during the work", "%d ms，工作还没结束", naiveFree.Milliseconds()))
	t.Add(text("Baton", "Baton"), renewals.Load(), lab.Textf("%d ms after the crash", "崩溃之后 %d ms", (renewedFree-crashed).Milliseconds()))
	if naiveFree == 0 || naiveFree >= work || least < float64(ttl.Milliseconds())/4 || renewedFree-crashed < ttl/4 || renewals.Load() < 3 || renewedFree-crashed > ttl+time.Second {
		return unexpected("free after %v and %v, the crash after %v, at least %v ms left, %d renewals", naiveFree, renewedFree, crashed, least, renewals.Load())
	}
	r.Say("During %d ms of work Baton's lock was renewed %d times and never had less than %d ms left. The other was gone after %d ms.",
		"工作的 %d ms 里，Baton 的锁续期了 %d 次，剩余时间从未少于 %d ms。另一把 %d ms 之后就没了。", crashed.Milliseconds(), renewals.Load(), int(least), naiveFree.Milliseconds())
	return nil
}
