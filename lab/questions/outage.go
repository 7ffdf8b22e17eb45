package questions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

// outage are the questions about a store that is down.
var outage = []*lab.Question{
	{
		Name:  "store-down",
		Topic: lab.Limits,
		Ask:   text("The store is down: fail open or fail closed?", "存储宕机：放行还是拒绝（fail open 还是 fail closed）？"),
		Answer: [3]lab.Text{
			text("A lock fails closed: who cannot ask holds nothing. A program that goes on without the lock is not alone: all the others go on, too.", "锁只能 fail closed：问不到存储，就等于没拿到锁。没拿到锁还继续做的程序不会是唯一的一个：别的程序也都在继续。"),
			text("A holder is not told at once: its lease stands until it cannot be renewed in time, and ends by a margin before its TTL.", "持有者不会马上得知：租约继续有效，直到来不及续期为止，并在 TTL 到期之前留出余量提前结束。"),
			text("A limit may do either, and Baton lets you say: without an option an error, FailOpen lets all pass, FailClosed none, FailLocal a share of the limit in each process.", "限流两种都行，由你来定：Baton 不加选项时返回错误，FailOpen 全部放行，FailClosed 全部拒绝，FailLocal 让每个进程按限额的一份在本地限流。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"baton: TestSilentStoreEndsTheLeaseInTime",
			"store/redisstore: TestServerIsGone",
			"ratelimit: TestStoreFails",
		},
		Run: storeDown,
	},
}

// A policy is the reaction of a limiter to a store that does not answer, with the results of
// the requests that it was asked about.
type policy struct {
	name    lab.Text
	by      ratelimit.Source // decides while the store is down; ByStore: none
	options []ratelimit.Option
	hears   lab.Text // the caller's action while the store is down
	limiter *ratelimit.Limiter

	mu     sync.Mutex
	parts  []lab.Part
	counts [3]counts // before, during and after the outage
}

// counts are numbers of requests.
type counts struct{ sent, passed, failed, byStore, byPolicy int }

// partsOfTime is the length of each part of a flow.
const partsOfTime = 100 * time.Millisecond

// ask asks about one request, and counts it in a phase.
func (p *policy) ask(ctx context.Context, phase int, at time.Duration) {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	res, err := p.limiter.Allow(ctx, "client/7")
	p.mu.Lock()
	defer p.mu.Unlock()
	c := &p.counts[phase]
	c.sent++
	switch {
	case err != nil:
		c.failed++
	case res.By == ratelimit.ByStore:
		c.byStore++
	case res.By == p.by:
		c.byPolicy++
	}
	p.count(at, err == nil && res.OK)
	if err == nil && res.OK {
		c.passed++
	}
}

// count counts a request in its part of the time. The mutex is locked.
func (p *policy) count(at time.Duration, passed bool) {
	part := int(at / partsOfTime)
	for len(p.parts) <= part {
		p.parts = append(p.parts, lab.Part{})
	}
	if passed {
		p.parts[part].Allowed++
	} else {
		p.parts[part].Refused++
	}
}

func storeDown(ctx context.Context, r *lab.Run) error {
	const (
		ttl, margin = 1500 * time.Millisecond, 500 * time.Millisecond
		limit       = 40 // per second
		instances   = 4  // FailLocal gives this process a quarter of it
		every       = 10 * time.Millisecond
		patience    = 500 * time.Millisecond
	)
	server := startRedis(r)
	url := "redis://" + server.Addr
	holders, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl, Margin: margin})
	if err != nil {
		return err
	}
	var others []*baton.Locker // each is as of a process of its own
	for range 5 {
		l, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
		if err != nil {
			return err
		}
		others = append(others, l)
	}
	store, err := open.Limits(ctx, url)
	if err != nil {
		return err
	}
	r.Site.Cleanup(func() { _ = store.Close() })
	policies := []*policy{
		{name: text("no option", "不加选项"), hears: text("an error", "错误")},
		{name: lab.Plain("FailOpen"), by: ratelimit.ByOpen, options: []ratelimit.Option{ratelimit.FailOpen(patience)}, hears: text("allowed, By: open", "放行，By：open")},
		{name: lab.Plain("FailClosed"), by: ratelimit.ByClosed, options: []ratelimit.Option{ratelimit.FailClosed(patience)}, hears: text("refused, By: closed", "拒绝，By：closed")},
		{name: text("FailLocal, 4 processes", "FailLocal，4 个进程"), by: ratelimit.ByLocal, options: []ratelimit.Option{ratelimit.FailLocal(instances, patience)}, hears: text("a share, By: local", "一份限额，By：local")},
	}
	for i, p := range policies {
		rule := ratelimit.SlidingWindow(limit, time.Second).Named(fmt.Sprintf("policy-%d", i))
		if p.limiter, err = ratelimit.New(store, rule, p.options...); err != nil {
			return err
		}
	}
	pings := &policy{name: lab.Plain("Redis: PING")} // whether the store is up, on the same scale

	// traffic sends requests for a time, evenly, and waits for their answers.
	traffic := func(phase int, length time.Duration) error {
		var all sync.WaitGroup
		defer all.Wait()
		begin := time.Now()
		for i := range int(length / every) {
			if err := wait(ctx, time.Until(begin.Add(time.Duration(i)*every))); err != nil {
				return err
			}
			at := r.Since()
			for _, p := range policies {
				all.Go(func() { p.ask(ctx, phase, at) })
			}
			all.Go(func() {
				_, err := server.Do("PING")
				pings.mu.Lock()
				defer pings.mu.Unlock()
				pings.count(at, err == nil)
			})
		}
		return nil
	}

	r.Start()
	a, err := holders.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	if err := traffic(0, time.Second); err != nil {
		return err
	}
	killed := r.Since()
	server.Kill()
	stands := a.Err() == nil
	told := make(chan time.Duration, 1)
	go func() {
		select {
		case <-ctx.Done():
		case <-a.Done():
			told <- r.Since() - killed
		}
	}()

	// While the store is down, each of the others asks for a free lock. Each does the work
	// although it has no lock, like a program that fails open.
	heard, took := make([]error, len(others)), make([]time.Duration, len(others))
	var mu sync.Mutex
	working, together := 0, 0
	var asking sync.WaitGroup
	for i, l := range others {
		asking.Go(func() {
			began := time.Now()
			_, heard[i] = l.TryLock(ctx, "report")
			took[i] = time.Since(began)
			mu.Lock()
			working++
			together = max(together, working)
			mu.Unlock()
			_ = wait(ctx, 500*time.Millisecond)
			mu.Lock()
			working--
			mu.Unlock()
		})
	}
	if err := traffic(1, 2*time.Second); err != nil {
		return err
	}
	asking.Wait()
	var toldAfter time.Duration
	select {
	case toldAfter = <-told:
	case <-time.After(ttl): // it should have been told long ago
		return unexpected("%v after the store died its holder was not told", r.Since()-killed)
	}
	lost := a.Err()
	refused := 0
	for _, err := range heard {
		if errors.Is(err, baton.ErrUnavailable) || errors.Is(err, baton.ErrUnknown) {
			refused++
		}
	}
	back := r.Since()
	server.Restart()
	if err := traffic(2, time.Second); err != nil {
		return err
	}
	b, err := others[0].Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	tokenOfB := b.Token()
	if err := b.Unlock(); err != nil {
		return err
	}

	flow := &lab.Flow{}
	for _, p := range append([]*policy{pings}, policies...) {
		row := lab.FlowRow{Name: p.name, Parts: p.parts}
		if p == pings {
			row.Note = lab.Textf("down from %d to %d ms", "%d 到 %d ms 宕机", killed.Milliseconds(), back.Milliseconds())
		} else {
			row.Bad = p.counts[1].passed > limit*(int((back-killed)/time.Second)+1)
			row.Note = lab.Textf("down: %d of %d pass", "宕机时放行 %[2]d 个中的 %[1]d 个", p.counts[1].passed, p.counts[1].sent)
		}
		flow.Rows = append(flow.Rows, row)
	}
	most := 0
	for _, row := range flow.Rows {
		most = max(most, len(row.Parts))
	}
	for i := range flow.Rows {
		flow.Rows[i].Parts = append(flow.Rows[i].Parts, make([]lab.Part, most-len(flow.Rows[i].Parts))...)
	}
	flow.Length = most * int(partsOfTime.Milliseconds())
	r.Flow(flow)
	t := r.Table(text("limit: 40 per second, 100 requests a second", "限额每秒 40 个，每秒 100 个请求"), text("pass, store up, 1 s", "存储正常 1 s，放行"),
		text("pass, store down, 2 s", "存储宕机 2 s，放行"), text("the caller hears then", "宕机时调用者得到"))
	for _, p := range policies {
		t.Add(p.name, lab.Textf("%d of %d", "%[2]d 个中的 %[1]d 个", p.counts[0].passed, p.counts[0].sent), lab.Textf("%d of %d", "%[2]d 个中的 %[1]d 个", p.counts[1].passed, p.counts[1].sent), p.hears)
	}
	t = r.Table(text("a lock, while the store is down", "锁，存储宕机时"), text("what happens", "结果"))
	t.Add(text("its holder, TTL 1500 ms, margin 500 ms", "持有者，TTL 1500 ms，余量 500 ms"), lab.Textf("is told after %d ms: could not be renewed", "%d ms 后得知：无法续期", toldAfter.Milliseconds()))
	t.Add(lab.Textf("%d others ask for a free lock", "另外 %d 个去拿一把空闲的锁", len(others)), lab.Textf("%d get an error, the last after %d ms", "%d 个得到错误，最晚 %d ms 后", refused, slices.Max(took).Milliseconds()))
	t.Add(text("each goes on without it: fail open", "拿不到也各自继续：fail open"), lab.Textf("%d work at the same time", "%d 个同时在工作", together))

	var why *baton.LostError
	if !stands || !errors.As(lost, &why) || why.Cause != baton.Expired || toldAfter > ttl || tokenOfB <= a.Token() {
		return unexpected("the holder's lease stood when the store died: %v; it was told after %v: %v; token %d, and then %d", stands, toldAfter, lost, a.Token(), tokenOfB)
	}
	if refused != len(others) || together < 2 {
		return unexpected("%d work at the same time; they got %v", together, heard)
	}
	for _, p := range policies {
		up, down, again := p.counts[0], p.counts[1], p.counts[2]
		least, greatest := 0, 0 // of the requests that may pass while the store is down
		switch p.by {
		case ratelimit.ByOpen:
			least, greatest = down.sent, down.sent
		case ratelimit.ByLocal:
			seconds := int((back-killed)/time.Second) + 1
			least, greatest = limit/instances, limit/instances*seconds
		}
		decided := down.byPolicy
		if p.by == ratelimit.ByStore {
			decided = down.failed
		}
		if up.passed < limit || up.passed >= up.sent || down.passed < least || down.passed > greatest || decided != down.sent || again.byStore == 0 {
			return unexpected("%s: before, during and after the outage: %+v", p.name.EN, p.counts)
		}
	}
	local := policies[3].counts[1]
	r.Say("While the store was down, FailOpen let %d of %d requests pass, FailClosed %d, and FailLocal %d: in each second at most a quarter of the limit. Without an option the caller had %d errors.",
		"存储宕机期间，FailOpen 在 %[2]d 个请求中放行了 %[1]d 个，FailClosed 放行 %[3]d 个，FailLocal 放行 %[4]d 个：每秒最多是限额的四分之一。不加选项时，调用者得到 %[5]d 个错误。",
		policies[1].counts[1].passed, policies[1].counts[1].sent, policies[2].counts[1].passed, local.passed, policies[0].counts[1].failed)
	r.Say("The lock was granted to nobody. Its holder was told %d ms after the store had died; the next grant, when the store was back, has a higher token.",
		"锁没有授予任何人。存储宕机 %d ms 之后持有者得知丢锁；存储恢复后的下一次授予，令牌更大。", toldAfter.Milliseconds())
	return nil
}
