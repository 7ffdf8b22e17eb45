package questions

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

// majority are the questions about locks on several servers.
var majority = []*lab.Question{
	{
		Name:  "redlock-down",
		Topic: lab.Majority,
		Ask:   text("Redlock with five servers: how many may be down?", "Redlock 五个节点：最多可以宕机几个？"),
		Answer: [3]lab.Text{
			text("Two: a lock needs three of five, whichever three they are. Of four servers one, as of three; and four can split their votes evenly, so Baton refuses an even number.", "两个：加锁需要五个中的三个，哪三个都行。四个节点和三个一样，只能宕机一个，而且票数可能平分，所以 Baton 拒绝偶数个节点。"),
			text("With three down nobody gets a lock, and every attempt ends with an error.", "宕机三个之后谁都拿不到锁，每次尝试都会返回错误。"),
			text("Servers that refuse connections cost no time; Baton asks three at the same time, and others in place of those that do not answer, so the slowest of the three that count decides.", "拒绝连接的节点不耗时间；Baton 并行请求三个节点，不响应的换成其他节点，耗时取决于算数的三个里最慢的那个。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"store/redlock: TestSilentServersDelayNobody", "store/redlock: TestMinorityIsLost", "store/redlock: TestNoSplitVotes", "open: TestRedlockURLsRefused"},
		Run:   redlockDown,
	},
	{
		Name:  "redlock-restart",
		Topic: lab.Majority,
		Ask:   text("Redlock: what if a server restarts and has forgotten its locks?", "Redlock：某个节点重启后丢了锁数据，会怎样？"),
		Answer: [3]lab.Text{
			text("It gives the same lock away a second time: with two servers that never had it, that is a second majority.", "它会把同一把锁再发一次：加上另外两个本来就没有这把锁的节点，又凑成一个多数派。"),
			text("The remedy is to let a server that restarted abstain for the longest TTL, or to write every command to disk before it is answered.", "办法是让重启的节点在最长 TTL 内不参与投票，或者每条命令先落盘再响应。"),
			text("Baton counts no vote of a server that started less than longest-ttl ago, unless the URL says durable=true.", "启动时间还不到 longest-ttl 的节点，Baton 不计它的票，除非 URL 里写了 durable=true。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"store/redlock: TestRestartedServersDoNotVote"},
		Run:   redlockRestart,
	},
	{
		Name:  "redlock-clock-jump",
		Topic: lab.Majority,
		Ask:   text("Redlock: what if the clock of a server jumps ahead?", "Redlock：节点的时钟向前跳了会怎样？"),
		Answer: [3]lab.Text{
			text("The lock ends on that server; while three of five still have it, nobody else gets in.", "锁在那个节点上过期；只要五个里还有三个保留着锁，别人就进不来。"),
			text("If the clocks of three jump, a second client gets a majority of SET NX PX while the first believes in its own; of Baton it may, too: both depend on time.", "如果三个节点的时钟一起跳，第二个客户端用 SET NX PX 就能拿到多数派，而第一个还以为自己持有；用 Baton 也可能：两者都依赖时间。"),
			text("Baton's first holder notices at its next renewal, which is due within a third of the TTL, and the next holder's token is higher, so that what is protected can refuse the old one.", "Baton 的旧持有者在下一次续期时（间隔为 TTL 的三分之一）就会发现；新持有者的栅栏令牌更大，被保护的资源可以据此拒绝旧持有者。"),
		},
		Needs: []lab.Server{lab.Redis, lab.Faketime},
		Tests: []string{"store/redlock: TestTwoClocksJump", "store/redlock: TestTokensRiseBetweenMajorities"},
		Run:   redlockClockJump,
	},
}

// A naiveRedlock is the algorithm as it is often written: SET NX PX on each server.
type naiveRedlock []*testserver.RedisServer

// take returns the number of servers that granted the lock.
func (servers naiveRedlock) take(key, value string, ttl time.Duration) (votes int) {
	for _, s := range servers {
		if answer, err := s.Do("SET", key, value, "NX", "PX", fmt.Sprint(ttl.Milliseconds())); err == nil && answer == "OK" {
			votes++
		}
	}
	return votes
}

// give deletes the key on each server where it has the value.
func (servers naiveRedlock) give(key, value string) {
	for _, s := range servers {
		_, _ = s.Do("EVAL", `if redis.call("GET", KEYS[1]) == ARGV[1] then redis.call("DEL", KEYS[1]) end`, "1", key, value)
	}
}

// startRedisNodes starts independent servers. Durable ones write every command to disk.
func startRedisNodes(r *lab.Run, n int, durable bool) (nodes naiveRedlock, url string) {
	var args []string
	if durable {
		args = []string{"--appendonly", "yes", "--appendfsync", "always"}
	}
	for range n {
		nodes = append(nodes, startRedis(r, args...))
	}
	url = "redlock://" + strings.Join(testserver.Addrs(nodes), ",")
	if durable {
		url += "?durable=true"
	}
	return nodes, url
}

func redlockDown(ctx context.Context, r *lab.Run) error {
	nodes, url := startRedisNodes(r, 5, true)
	locks, _, err := lockerAt(ctx, r, url, baton.Config{TTL: 5 * time.Second})
	if err != nil {
		return err
	}
	var bars []lab.ChartBar
	t := r.Table(text("servers down", "宕机节点"), text("SET NX PX: votes", "SET NX PX：得票"), text("Baton", "Baton"), text("the answer took", "响应耗时"))
	for down := range 4 {
		if down > 0 {
			nodes[down-1].Kill()
		}
		votes := nodes.take("naive", fmt.Sprint(down), 5*time.Second)
		nodes.give("naive", fmt.Sprint(down))

		// Baton: the fifth attempt is timed, because by then it knows which servers are down.
		try := lockWhenPossible
		if down > 2 {
			try = func(ctx context.Context, locks *baton.Locker, key string) (*baton.Lease, error) {
				return locks.TryLock(ctx, key)
			}
		}
		var took time.Duration
		var failed error
		for range 5 {
			began := time.Now()
			lease, err := try(ctx, locks, fmt.Sprint("order/", down))
			took, failed = time.Since(began), err
			if err == nil {
				if err := lease.Unlock(); err != nil {
					return err
				}
			}
		}
		answer, ms := text("granted", "获得锁"), float64(took.Microseconds())/1000
		if failed != nil {
			answer = text("no majority", "没有多数派")
		}
		if may := down <= 2; votes != 5-down || (failed == nil) != may || !may && !errors.Is(failed, baton.ErrUnavailable) && !errors.Is(failed, baton.ErrUnknown) {
			return unexpected("with %d down there were %d votes, and Baton answered: %v", down, votes, failed)
		}
		t.Add(down, lab.Textf("%d of 5", "5 票中的 %d 票", votes), answer, fmt.Sprintf("%.1f ms", ms))
		bars = append(bars, lab.ChartBar{
			Name: lab.Textf("%d down", "宕机 %d 个", down), Value: float64(votes), Bad: failed != nil,
			Shown: text(fmt.Sprintf("%d votes: %s", votes, answer.EN), fmt.Sprintf("%d 票：%s", votes, answer.ZH)),
		})
	}
	r.Chart(&lab.Chart{X: text("votes", "得票"), Bars: bars, Bound: &lab.Bound{At: 3, Name: text("majority: 3", "多数派：3")}})
	r.Say("With none, one and two of five servers down a lock was granted; with three down two votes were left, and no lock could be taken.",
		"五个节点宕机零个、一个、两个时都能拿到锁；宕机三个时只剩两票，谁都拿不到锁。")
	return nil
}

func redlockRestart(ctx context.Context, r *lab.Run) error {
	const ttl = 2 * time.Second
	nodes, url := startRedisNodes(r, 5, false)
	// A does not reach the last two servers.
	addrs := testserver.Addrs(nodes)
	for i := 3; i < 5; i++ {
		away := faultproxy.New(r.Site, addrs[i])
		away.Refuse()
		addrs[i] = away.Addr
	}
	locksA, _, err := lockerAt(ctx, r, "redlock://"+strings.Join(addrs, ",")+"?longest-ttl=2s", baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	locksB, _, err := lockerAt(ctx, r, url+"?longest-ttl=2s", baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	// Servers that have just started do not vote: wait until they do.
	if _, err := lockWhenPossible(ctx, locksB, "warm"); err != nil {
		return err
	}
	lane := r.Lane(text("Server 3", "节点 3"))
	naiveA, naiveB := r.Lane(text("SET NX PX: A", "SET NX PX：A")), r.Lane(text("SET NX PX: B", "SET NX PX：B"))
	batonA, batonB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B", "Baton：B"))
	lease, err := lockWhenPossible(ctx, locksA, "order/42")
	if err != nil {
		return err
	}
	r.Start()
	first := nodes[:3].take("naive", "A", time.Minute)
	naiveA.Begin(lab.Holds, lab.Text{})
	naiveA.Mark(lab.Granted, text("votes of 1, 2, 3", "1、2、3 投票"))
	batonA.Begin(lab.Holds, lab.Text{})
	batonA.Mark(lab.Granted, lab.Text{})
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}

	down := lane.Begin(lab.Down, lab.Text{})
	nodes[2].Restart()
	down.End()
	restarted := r.Since()
	lane.Mark(lab.Noted, text("restarts, and has forgotten all", "重启，数据全丢"))
	second := nodes.take("naive", "B", time.Minute)
	naiveA.Begin(lab.Wrong, lab.Text{})
	naiveB.Begin(lab.Holds, lab.Text{})
	naiveB.Mark(lab.Harm, text("votes of 3, 4, 5: two holders", "3、4、5 投票：两个持有者"))

	batonB.Begin(lab.Waits, lab.Text{})
	told := make(chan time.Duration, 1)
	go func() {
		<-lease.Done()
		at := r.Since()
		batonA.Mark(lab.Told, text("A has no majority left", "A 已没有多数派"))
		batonA.End()
		told <- at
	}()
	next, err := lockWhenPossible(ctx, locksB, "order/42")
	if err != nil {
		return err
	}
	granted := r.Since()
	batonB.Begin(lab.Holds, lab.Text{})
	batonB.Mark(lab.Granted, text("server 3 votes again", "节点 3 恢复投票"))
	lost := <-told
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	t := r.Table(text("way", "方式"), text("votes for A", "A 的票"), text("votes for B after the restart", "重启后 B 的票"), text("holders at once", "同时的持有者"))
	t.Add("SET NX PX", first, second, 2)
	t.Add("Baton", 3, text("2, until server 3 votes again", "2，直到节点 3 恢复投票"), 1)
	if first != 3 || second != 3 || granted < lost || next.Token() <= lease.Token() {
		return unexpected("votes %d and %d; A was told after %v, B was granted after %v, tokens %d and %d", first, second, lost, granted, lease.Token(), next.Token())
	}
	r.Say("SET NX PX gave A and B three votes each. Baton's A was told of its loss %d ms after the restart, and B was granted %d ms after it: server 3 did not vote for %d ms.",
		"SET NX PX 给了 A 和 B 各三票。Baton 的 A 在重启 %d ms 后得知丢锁，B 在重启 %d ms 后才获得锁：节点 3 有 %d ms 不投票。", (lost - restarted).Milliseconds(), (granted - restarted).Milliseconds(), ttl.Milliseconds())
	return next.Unlock()
}

// lockWhenPossible tries until the lock is granted, whatever the errors are.
func lockWhenPossible(ctx context.Context, locks *baton.Locker, key string) (*baton.Lease, error) {
	for {
		lease, err := locks.TryLock(ctx, key)
		if err == nil {
			return lease, nil
		}
		if stop := wait(ctx, 20*time.Millisecond); stop != nil {
			return nil, errors.Join(stop, err)
		}
	}
}

func redlockClockJump(ctx context.Context, r *lab.Run) error {
	const ttl = 6 * time.Second
	clocks := map[*testserver.RedisServer]*testserver.Clock{}
	var nodes naiveRedlock
	for range 5 {
		clock := testserver.NewClock(r.Site)
		server := clock.Redis("--appendonly", "yes", "--appendfsync", "always")
		clocks[server], nodes = clock, append(nodes, server)
	}
	nameRedis(r, nodes[0])
	// Baton sorts the servers, and asks the first three first.
	slices.SortFunc(nodes, func(a, b *testserver.RedisServer) int { return strings.Compare(a.Addr, b.Addr) })
	url := "redlock://" + strings.Join(testserver.Addrs(nodes), ",") + "?durable=true"
	locksA, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	locksB, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	naiveA, naiveB := r.Lane(text("SET NX PX: A", "SET NX PX：A")), r.Lane(text("SET NX PX: B", "SET NX PX：B"))
	batonA, batonB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B", "Baton：B"))
	t := r.Table(text("clocks that jump", "跳变的时钟"), text("SET NX PX: votes for B", "SET NX PX：B 的票"), text("Baton: B", "Baton：B"), text("Baton: A", "Baton：A"))
	for round, one := range []struct {
		name    lab.Text
		jumping naiveRedlock
	}{
		{text("1", "1"), nodes[:1]},
		{text("2", "2"), nodes[:2]},
		{text("3", "3"), nodes[:3]},
	} {
		key := fmt.Sprint("order/", round)
		lease, err := lockWhenPossible(ctx, locksA, key)
		if err != nil {
			return err
		}
		for votes := 0; votes < 5; { // the lock reaches the last servers a moment later
			votes = 0
			for _, n := range nodes {
				if there, err := n.Do("EXISTS", key); err == nil && there == "1" {
					votes++
				}
			}
			if err := wait(ctx, 5*time.Millisecond); err != nil {
				return err
			}
		}
		nodes.take("naive"+key, "A", time.Minute)
		last := round == 2
		if last {
			r.Start()
			naiveA.Begin(lab.Holds, lab.Text{})
			batonA.Begin(lab.Holds, lab.Text{})
			if err := wait(ctx, 200*time.Millisecond); err != nil {
				return err
			}
		}
		for _, n := range one.jumping {
			clocks[n].Set(time.Duration(round+1) * time.Hour)
		}
		votes := nodes.take("naive"+key, "B", time.Minute)
		second, err := locksB.TryLock(ctx, key)
		for err != nil && !errors.Is(err, baton.ErrHeld) && ctx.Err() == nil { // no answer in time: the machine is busy
			second, err = locksB.TryLock(ctx, key)
		}
		if !last {
			_, renewed := lease.Extend(ctx)
			if votes != len(one.jumping) || !errors.Is(err, baton.ErrHeld) || renewed != nil {
				return unexpected("%s: B had %d votes, Baton answered %v to B, and %v to A's renewal", one.name.EN, votes, err, renewed)
			}
			t.Add(one.name, votes, text("refused: A holds", "被拒绝：A 持有"), text("holds", "持有"))
			if err := lease.Unlock(); err != nil {
				return err
			}
			continue
		}
		if err != nil || votes != 3 || second.Token() <= lease.Token() {
			return unexpected("%s: B had %d votes, and Baton answered %v", one.name.EN, votes, err)
		}
		jumped := r.Since()
		naiveA.Begin(lab.Wrong, lab.Text{})
		naiveB.Begin(lab.Holds, lab.Text{})
		naiveB.Mark(lab.Harm, text("three clocks jump: two holders", "三个时钟跳变：两个持有者"))
		batonA.Begin(lab.Wrong, lab.Text{})
		batonB.Begin(lab.Holds, lab.Text{})
		batonB.Mark(lab.Harm, text("granted, with a higher token", "获得锁，令牌更大"))
		select {
		case <-lease.Done():
		case <-ctx.Done():
			return context.Cause(ctx)
		}
		told := r.Since() - jumped
		batonA.Mark(lab.Told, text("A is told at its next renewal", "A 在下一次续期时得知"))
		batonA.End()
		if err := wait(ctx, 500*time.Millisecond); err != nil {
			return err
		}
		t.Add(one.name, votes, text("granted", "获得锁"), lab.Textf("believed for %d ms more", "又相信了 %d ms", told.Milliseconds()))
		r.Say("One or two clocks that jump harm nothing. After three, SET NX PX gave B 3 votes, and A would not have noticed before its TTL ended. Baton granted B, too, and A learned it %d ms later. The token of B was higher.",
			"一两个时钟跳变没有危害。三个跳变后，SET NX PX 给了 B 3 票，A 在 TTL 结束之前毫不知情。Baton 也把锁授予了 B，A 在 %d ms 之后得知。B 的令牌更大。", told.Milliseconds())
		return second.Unlock()
	}
	return nil
}
