package questions

import (
	"context"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/lab/simulate"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

// limiting are the questions about rate limits.
var limiting = []*lab.Question{
	{
		Name:  "fixed-window-edge",
		Topic: lab.Limits,
		Ask:   text("A limit of 100 per minute: how can 120 requests pass within 20 seconds?", "限流每分钟 100 次：为什么 20 秒内能放行 120 个请求？"),
		Answer: [3]lab.Text{
			text("A fixed window counts from zero at each full minute: what came before the boundary is forgotten at the boundary.", "固定窗口到整分钟就清零：边界之前的请求，一过边界就不算了。"),
			text("So 60 at 0:50 and 60 at 1:10 are 60 in each of two windows, and up to twice the limit passes around a boundary.", "所以 0:50 来 60 个、1:10 来 60 个，两个窗口各 60 个都不超限；边界前后最多会放行两倍的限额。"),
			text("Baton's sliding window never allows more than the limit within any minute, wherever that minute begins.", "Baton 的滑动窗口，不论从哪一刻算起，任意一分钟内都不会超过限额。"),
		},
		Tests: []string{
			"lab/simulate: TestRun",
			"internal/rate: TestBounds",
		},
		Run: fixedWindowEdge,
	},
	{
		Name:  "leaky-or-token",
		Topic: lab.Limits,
		Ask:   text("Leaky bucket or token bucket: what is the difference?", "漏桶和令牌桶有什么区别？"),
		Answer: [3]lab.Text{
			text("A token bucket lets a burst pass at once, up to the tokens that it has saved; after that, the rate.", "令牌桶攒了多少令牌，突发流量就能立刻通过多少；之后按速率放行。"),
			text("A leaky bucket that queues lets nothing pass faster than the rate: a burst waits in it, each request is told for how long, and what does not fit is refused.", "用来排队的漏桶，出口永远不快于设定速率：突发流量在桶里排队，每个请求都被告知要等多久，桶满之后的直接拒绝。"),
			text("Take the token bucket if bursts are welcome, and the leaky bucket if what stands behind it bears no burst.", "能接受突发就用令牌桶；下游扛不住突发就用漏桶。"),
		},
		Tests: []string{
			"lab/simulate: TestRun",
		},
		Run: leakyOrToken,
	},
	{
		Name:  "incr-expire",
		Topic: lab.Limits,
		Ask:   text("A rate limit with INCR and EXPIRE in Redis: what is wrong with it?", "用 Redis 的 INCR 加 EXPIRE 做限流，有什么问题？"),
		Answer: [3]lab.Text{
			text("A crash between the two leaves a counter without an expiry: that client is refused for ever.", "两条命令之间崩溃，计数器就没有过期时间：这个客户端会被永远拒绝。"),
			text("GET, compare, then INCR is worse: all who read before the others count pass together.", "先 GET 判断再 INCR 更糟：同时读到旧值的请求会一起通过。"),
			text("Counting, deciding and the expiry belong in one step at the server: a script, as Baton sends one.", "计数、判断、设过期必须在服务器上一步完成：用脚本，Baton 就是这样做的。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"drivertest: exactly the capacity",
			"drivertest: what has expired is removed",
		},
		Run: incrExpire,
	},
	{
		Name:  "refused-counts",
		Topic: lab.Limits,
		Ask:   text("Should a refused request count against the limit?", "被拒绝的请求要不要计数？"),
		Answer: [3]lab.Text{
			text("If it counts, a client that retries faster than the limit never gets in again: its own retries keep the window full.", "如果计数，重试频率高于限额的客户端就再也进不来：它自己的重试把窗口一直占满。"),
			text("The usual ZADD, ZCARD in MULTI does so, because the request is added before the count is known.", "常见的 MULTI 里 ZADD 再 ZCARD 就是这样：还不知道是否超限，就先记上了。"),
			text("With Baton a refusal takes nothing, and says after what time a retry is allowed if nobody else was faster.", "Baton 的拒绝不消耗任何额度，并告知多久之后重试会被放行（只要没有别人抢先）。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"internal/rate: TestPromises"},
		Run:   refusedCounts,
	},
	{
		Name:  "all-algorithms",
		Topic: lab.Limits,
		Ask:   text("Fixed and sliding window, log, token and leaky bucket: what does each do with the same traffic?", "固定窗口、滑动窗口、滑动日志、令牌桶、漏桶：同样的流量下各自怎么表现？"),
		Answer: [3]lab.Text{
			text("The fixed window lets up to twice the limit pass around a boundary; the estimate of two counters is better, and not exact.", "固定窗口在边界附近最多放行两倍的限额；两个计数器的估算好一些，但不精确。"),
			text("The sliding window and the log never exceed the limit in any minute, as Baton cuts the window; as most books cut it, it gives room back too early. A token bucket may by its burst.", "滑动窗口（按 Baton 的切法）和滑动日志在任意一分钟内都不超限；按多数书上的切法，窗口会过早归还名额。令牌桶可能超出一个突发量。"),
			text("The leaky bucket alone makes the flow even, at the price of waiting.", "只有漏桶能削峰、把流量整平，代价是等待。"),
		},
		Tests: []string{"internal/rate: TestBounds"},
		Run:   allAlgorithms,
	},
}

// traffic reads bursts as `baton-lab simulate` does: "60@0:50", "600@0+1m".
func traffic(bursts ...string) (all []simulate.Event, err error) {
	for _, b := range bursts {
		events, err := simulate.Burst(b)
		if err != nil {
			return nil, err
		}
		all = append(all, events...)
	}
	simulate.Sort(all)
	return all, nil
}

// flowRow has a limiter's decisions about the events.
func flowRow(name lab.Text, events []simulate.Event, o simulate.Outcome, length time.Duration, parts int) lab.FlowRow {
	return lab.FlowRow{Name: name, Parts: simulate.Parts(events, o, simulate.Origin, length, parts)}
}

func fixedWindowEdge(_ context.Context, r *lab.Run) error {
	const limit, length = 100, 2 * time.Minute
	events, err := traffic("60@0:50", "60@1:10")
	if err != nil {
		return err
	}
	fixed, err := simulate.Run(limits.Limit{Algorithm: limits.FixedWindow, N: limit, Period: time.Minute}, events, time.Minute)
	if err != nil {
		return err
	}
	sliding, err := simulate.Run(limits.Limit{Algorithm: limits.SlidingWindow, N: limit, Period: time.Minute, Parts: 60}, events, time.Minute)
	if err != nil {
		return err
	}
	flow := &lab.Flow{Length: int(length.Milliseconds())}
	t := r.Table(text("100 per minute, by", "每分钟 100 次"), text("allowed at 0:50", "0:50 放行"), text("allowed at 1:10", "1:10 放行"), text("most within any minute", "任意一分钟内最多"))
	for _, one := range []struct {
		name lab.Text
		o    simulate.Outcome
	}{
		{text("fixed window", "固定窗口"), fixed},
		{text("sliding window (Baton)", "滑动窗口（Baton）"), sliding},
	} {
		row := flowRow(one.name, events, one.o, length, 60)
		row.Note = lab.Textf("at most %d in a minute", "一分钟内最多 %d 个", one.o.Most)
		row.Bad = one.o.Most > limit
		flow.Rows = append(flow.Rows, row)
		t.Add(one.name, row.Parts[25].Allowed, row.Parts[35].Allowed, one.o.Most)
	}
	r.Flow(flow)
	if fixed.Most != 120 || sliding.Most != limit || sliding.Refused != 20 {
		return unexpected("the fixed window allowed %d in a minute, the sliding window %d and refused %d", fixed.Most, sliding.Most, sliding.Refused)
	}
	r.Say("The fixed window let %d requests pass within 20 seconds; the sliding window refused the last %d of them, and said that they may come again after %v.",
		"固定窗口在 20 秒内放行了 %d 个请求；滑动窗口拒绝了其中最后 %d 个，并告知 %v 之后可以再来。", fixed.Most, sliding.Refused, sliding.Verdicts[119].Retry)
	return nil
}

func leakyOrToken(_ context.Context, r *lab.Run) error {
	const length = 30 * time.Second
	events, err := traffic("20@3s", "8@15s+8s")
	if err != nil {
		return err
	}
	token, err := simulate.Run(limits.Limit{Algorithm: limits.TokenBucket, N: 1, Period: time.Second, Burst: 10}, events, time.Second)
	if err != nil {
		return err
	}
	leaky, err := simulate.Run(limits.Limit{Algorithm: limits.LeakyBucket, N: 1, Period: time.Second, Burst: 10}, events, time.Second)
	if err != nil {
		return err
	}
	flow := &lab.Flow{Length: int(length.Milliseconds())}
	t := r.Table(text("1 per second, 10 at most", "每秒 1 个，最多 10 个"), text("allowed", "放行"), text("refused", "拒绝"), text("most that passed in one second", "一秒内最多通过"), text("longest wait", "最长等待"))
	for _, one := range []struct {
		name lab.Text
		o    simulate.Outcome
	}{
		{text("token bucket: passes", "令牌桶：立刻通过"), token},
		{text("leaky bucket: queues", "漏桶：排队"), leaky},
	} {
		row := flowRow(one.name, events, one.o, length, 30)
		row.Note = lab.Textf("at most %d a second, waits %v", "一秒最多 %d 个，最长等 %v", one.o.Most, one.o.LongestWait)
		flow.Rows = append(flow.Rows, row)
		t.Add(one.name, one.o.Allowed, one.o.Refused, one.o.Most, one.o.LongestWait)
	}
	r.Flow(flow)
	if token.Most != 10 || token.LongestWait != 0 || leaky.Most != 1 || leaky.LongestWait < 5*time.Second {
		return unexpected("the token bucket let %d pass in a second, the leaky bucket %d after waits of up to %v", token.Most, leaky.Most, leaky.LongestWait)
	}
	r.Say("Of 20 requests at once, both took 10. Those of the token bucket passed in the same moment; those of the leaky bucket one a second, the last after %v.",
		"同时来的 20 个请求，两者都只接受 10 个。令牌桶的同一时刻全部通过；漏桶的每秒通过一个，最后一个等了 %v。", leaky.LongestWait)
	return nil
}

func incrExpire(ctx context.Context, r *lab.Run) error {
	const limit, period, length, every = 5, time.Second, 4 * time.Second, 100 * time.Millisecond
	server := startRedis(r)
	limiter, err := limiterAt(ctx, r, "redis://"+server.Addr, ratelimit.SlidingWindow(limit, period))
	if err != nil {
		return err
	}
	// The first request of the first program: it crashes before EXPIRE.
	if _, err := server.Do("INCR", "client/7"); err != nil {
		return err
	}
	naive := func() (bool, error) {
		answer, err := server.Do("INCR", "client/7")
		if err == nil && answer == "1" {
			_, err = server.Do("PEXPIRE", "client/7", "1000")
		}
		n, _ := strconv.Atoi(answer)
		return n <= limit, err
	}
	const script = `local n = redis.call("INCR", KEYS[1]) if n == 1 then redis.call("PEXPIRE", KEYS[1], 1000) end return n`
	scripted := func() (bool, error) {
		answer, err := server.Do("EVAL", script, "1", "client/8")
		n, _ := strconv.Atoi(answer)
		return n <= limit, err
	}
	batons := func() (bool, error) {
		d, err := limiter.Allow(ctx, "client/9")
		return d.OK, err
	}
	flow := &lab.Flow{Length: int(length.Milliseconds()), Rows: []lab.FlowRow{
		{Name: text("INCR, crash, EXPIRE", "INCR，崩溃，EXPIRE"), Parts: make([]lab.Part, 40)},
		{Name: text("both in one script", "两条放进一个脚本"), Parts: make([]lab.Part, 40)},
		{Name: text("Baton, sliding window", "Baton 滑动窗口"), Parts: make([]lab.Part, 40)},
	}}
	allowed := make([]int, len(flow.Rows))
	r.Flow(flow)
	r.Start()
	for i := range 40 {
		for j, ask := range []func() (bool, error){naive, scripted, batons} {
			ok, err := ask()
			if err != nil {
				return err
			}
			if ok {
				allowed[j]++
				flow.Rows[j].Parts[i].Allowed++
			} else {
				flow.Rows[j].Parts[i].Refused++
			}
		}
		if err := wait(ctx, every); err != nil {
			return err
		}
	}
	for j := range flow.Rows {
		flow.Rows[j].Note = lab.Textf("%d of 40 allowed", "40 个放行 %d 个", allowed[j])
	}
	r.Flow(flow)
	left, err := server.Do("PTTL", "client/7")
	if err != nil {
		return err
	}

	// Eight clients check at the same moment, and count afterwards.
	const clients = 8
	together := 0
	for range clients {
		if answer, err := server.Do("GET", "together"); err != nil {
			return err
		} else if n, _ := strconv.Atoi(answer); n < limit {
			together++
		}
	}
	for range together {
		if _, err := server.Do("INCR", "together"); err != nil {
			return err
		}
	}
	ours, err := allowAtOnce(ctx, []*ratelimit.Limiter{limiter}, clients)
	if err != nil {
		return err
	}
	t := r.Table(text("after the crash, 4 s at 10 a second", "崩溃之后 4 秒，每秒 10 个请求"), text("allowed (limit: 5 per second)", "放行（限额每秒 5 个）"), text("PTTL of the counter", "计数器的 PTTL"))
	t.Add("INCR, EXPIRE", allowed[0], left)
	t.Add(text("both in one script", "两条放进一个脚本"), allowed[1], text("at most 1000", "最多 1000"))
	t.Add("Baton", allowed[2], text("at most the window", "最多一个窗口"))
	t = r.Table(text("8 clients at the same moment", "8 个客户端同时请求"), text("allowed (limit: 5)", "放行（限额 5）"))
	t.Add(text("GET, compare, INCR", "GET，判断，INCR"), together)
	t.Add("Baton", ours)
	if allowed[0] != limit-1 || left != "-1" || allowed[1] <= limit || allowed[2] <= limit || together != clients || ours != limit {
		return unexpected("allowed %v, PTTL %s; eight at once: %d, Baton %d", allowed, left, together, ours)
	}
	r.Say("The counter without EXPIRE let %d more requests pass, and then none: its PTTL is -1. Baton allowed %d of 40 in the same 4 seconds. Of 8 clients at the same moment, GET and INCR let %d pass, Baton %d.",
		"没有 EXPIRE 的计数器只再放行了 %d 个请求，此后一个也不放行：PTTL 是 -1。同样的 4 秒里，Baton 在 40 个中放行了 %d 个。8 个客户端同时来，GET 加 INCR 放行 %d 个，Baton 放行 %d 个。",
		allowed[0], allowed[2], together, ours)
	return nil
}

// limiterAt opens a store and makes a Limiter over it, like a separate program.
func limiterAt(ctx context.Context, r *lab.Run, url string, l ratelimit.Limit) (*ratelimit.Limiter, error) {
	store, err := open.Limits(ctx, url)
	if err != nil {
		return nil, err
	}
	r.Site.Cleanup(func() { _ = store.Close() })
	return ratelimit.New(store, l)
}

// allowAtOnce sends n requests about one key through each limiter at once, and counts the
// allowed ones.
func allowAtOnce(ctx context.Context, limiters []*ratelimit.Limiter, n int) (int, error) {
	var allowed atomic.Int64
	var failed atomic.Pointer[error]
	var all sync.WaitGroup
	for _, limiter := range limiters {
		for range n {
			all.Go(func() {
				d, err := limiter.Allow(ctx, "together")
				if err != nil {
					failed.Store(&err)
				} else if d.OK {
					allowed.Add(1)
				}
			})
		}
	}
	all.Wait()
	if err := failed.Load(); err != nil {
		return 0, *err
	}
	return int(allowed.Load()), nil
}

func refusedCounts(_ context.Context, r *lab.Run) error {
	const limit, length = 5, 8 * time.Second
	server := startRedis(r)
	events, err := traffic("80@0s+8s") // ten a second: twice the limit
	if err != nil {
		return err
	}

	// The usual sliding log. Its times are those of the clients.
	naive := simulate.Outcome{Verdicts: make([]simulate.Verdict, len(events))}
	for i, e := range events {
		now := e.At.UnixMilli()
		if _, err := server.Do("ZREMRANGEBYSCORE", "client/7", "0", strconv.FormatInt(now-1000, 10)); err != nil {
			return err
		}
		if _, err := server.Do("ZADD", "client/7", strconv.FormatInt(now, 10), "request "+strconv.Itoa(i)); err != nil {
			return err
		}
		answer, err := server.Do("ZCARD", "client/7")
		if err != nil {
			return err
		}
		if n, _ := strconv.Atoi(answer); n <= limit {
			naive.Verdicts[i].OK = true
			naive.Allowed++
		} else {
			naive.Refused++
		}
	}
	batons, err := simulate.Run(limits.Limit{Algorithm: limits.SlidingLog, N: limit, Period: time.Second}, events, time.Second)
	if err != nil {
		return err
	}
	flow := &lab.Flow{Length: int(length.Milliseconds())}
	t := r.Table(text("a client that sends 10 a second (limit: 5)", "每秒发 10 个请求的客户端（限额 5）"), text("allowed in 8 s", "8 秒内放行"), text("refused", "拒绝"), text("allowed after the first second", "第一秒之后放行"))
	var later [2]int
	for j, one := range []struct {
		name lab.Text
		o    simulate.Outcome
	}{
		{text("ZADD, then ZCARD", "先 ZADD 再 ZCARD"), naive},
		{text("Baton, sliding log", "Baton 滑动日志"), batons},
	} {
		row := flowRow(one.name, events, one.o, length, 40)
		row.Note = lab.Textf("%d of 80 allowed", "80 个放行 %d 个", one.o.Allowed)
		for _, p := range row.Parts[5:] {
			later[j] += p.Allowed
		}
		flow.Rows = append(flow.Rows, row)
		t.Add(one.name, one.o.Allowed, one.o.Refused, later[j])
	}
	r.Flow(flow)
	if naive.Allowed != limit || later[0] != 0 || batons.Allowed != 8*limit {
		return unexpected("ZADD and ZCARD allowed %d, of these %d after the first second; Baton %d", naive.Allowed, later[0], batons.Allowed)
	}
	r.Say("ZADD before ZCARD let %d requests pass in the first second, and none after it, as the refused ones fill the window. Baton let %d pass: %d in every second.",
		"先 ZADD 再 ZCARD，第一秒放行 %d 个，之后一个也没有：被拒绝的请求把窗口占满了。Baton 放行 %d 个：每秒 %d 个。", naive.Allowed, batons.Allowed, limit)
	return nil
}

func allAlgorithms(_ context.Context, r *lab.Run) error {
	const limit, length = 60, 4 * time.Minute
	events, err := traffic("60@0:48+10s", "60@1:02+10s", "120@0s+4m", "60@2:30", "90@2:30+1m")
	if err != nil {
		return err
	}
	flow := &lab.Flow{Length: int(length.Milliseconds())}
	t := r.Table(text("60 per minute, by", "每分钟 60 个"), text("allowed", "放行"), text("refused", "拒绝"), text("most within any minute", "任意一分钟内最多"), text("longest wait", "最长等待"), text("numbers kept", "保存的数"))
	most := map[limits.Algorithm]int64{}
	for _, one := range []struct {
		name lab.Text
		rule limits.Limit
	}{
		{text("fixed window", "固定窗口"), limits.Limit{Algorithm: limits.FixedWindow}},
		{text("estimated window", "两个计数器估算"), limits.Limit{Algorithm: limits.EstimatedWindow}},
		{text("sliding window", "滑动窗口"), limits.Limit{Algorithm: limits.SlidingWindow, Parts: 60}},
		{text("sliding log", "滑动日志"), limits.Limit{Algorithm: limits.SlidingLog}},
		{text("token bucket, 20", "令牌桶，容量 20"), limits.Limit{Algorithm: limits.TokenBucket, Burst: 20}},
		{text("leaky bucket, 20", "漏桶，容量 20"), limits.Limit{Algorithm: limits.LeakyBucket, Burst: 20}},
	} {
		one.rule.N, one.rule.Period = limit, time.Minute
		o, err := simulate.Run(one.rule, events, time.Minute)
		if err != nil {
			return err
		}
		row := flowRow(one.name, events, o, length, 60)
		row.Note = lab.Textf("at most %d in a minute", "一分钟内最多 %d 个", o.Most)
		row.Bad = o.Most > limit
		flow.Rows = append(flow.Rows, row)
		t.Add(one.name, o.Allowed, o.Refused, o.Most, o.LongestWait.Round(time.Millisecond), o.Kept)
		most[one.rule.Algorithm] = o.Most
		if one.rule.Algorithm == limits.LeakyBucket && o.LongestWait < 10*time.Second {
			return unexpected("the leaky bucket let nobody wait for longer than %v", o.LongestWait)
		}
	}
	r.Flow(flow)
	if f := most[limits.FixedWindow]; f <= limit*3/2 || most[limits.EstimatedWindow] >= f || most[limits.SlidingWindow] > limit ||
		most[limits.SlidingLog] > limit || most[limits.TokenBucket] > limit+20 || most[limits.LeakyBucket] > limit+1 {
		return unexpected("the most within a minute: %v", most)
	}
	r.Say("Around the minute the fixed window let %d pass within 60 seconds, the estimate %d, the token bucket %d; the sliding window and the log never more than 60.",
		"在整分钟前后，固定窗口在 60 秒内放行 %d 个，估算窗口 %d 个，令牌桶 %d 个；滑动窗口和滑动日志从不超过 60 个。",
		most[limits.FixedWindow], most[limits.EstimatedWindow], most[limits.TokenBucket])
	return nil
}
