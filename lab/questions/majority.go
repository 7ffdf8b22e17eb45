package questions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/open"
)

// majority are the questions about locks on several servers.
var majority = []*lab.Question{
	{
		Name:  "redlock-down",
		Topic: lab.Majority,
		Ask:   text("Redlock with five servers: how many may be down?", "Redlock 五个节点：最多可以宕机几个？"),
		Answer: [3]lab.Text{
			text("Two: a lock needs three of five, whichever three they are.", "两个：加锁需要五个中的三个，哪三个都行。"),
			text("With three down nobody gets a lock, and every attempt ends with an error.", "宕机三个之后谁都拿不到锁，每次尝试都会返回错误。"),
			text("Servers that refuse connections cost no time; Baton asks three at the same time, and others in place of those that do not answer, so the slowest of the three that count decides.", "拒绝连接的节点不耗时间；Baton 并行请求三个节点，不应答的换成别的节点，耗时取决于算数的三个里最慢的那个。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"store/redlock: TestSilentServersDelayNobody", "store/redlock: TestMinorityIsLost"},
		Run:   redlockDown,
	},
	{
		Name:  "redlock-restart",
		Topic: lab.Majority,
		Ask:   text("Redlock: what if a server restarts and has forgotten its locks?", "Redlock：某个节点重启后丢了锁数据，会怎样？"),
		Answer: [3]lab.Text{
			text("It gives the same lock away a second time: with two servers that never had it, that is a second majority.", "它会把同一把锁再发一次：加上另外两个本来就没有这把锁的节点，又凑成一个多数派。"),
			text("The remedy is to let a server that restarted abstain for the longest TTL, or to write every command to disk before it is answered.", "办法是让重启的节点在最长 TTL 内不参与投票，或者每条命令先落盘再应答。"),
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
	{
		Name:  "how-many-may-fail",
		Topic: lab.Majority,
		Ask:   text("A cluster of 3, 4 or 5: how many may fail?", "3、4、5 个节点的集群：最多能坏几个？"),
		Answer: [3]lab.Text{
			text("f of 2f + 1: a majority has to be left, and it is counted of all members, not of those that live.", "2f+1 个里最多坏 f 个：剩下的必须是多数派，而且按全部成员算，不是按存活的算。"),
			text("Four tolerate one failure, like three: the fourth adds a member that can fail, and no failure that is tolerated.", "四个和三个一样，只能坏一个：第四个只是多了一个可能坏的成员，容错能力没有增加。"),
			text("So the usual numbers are odd; Baton's Redlock refuses an even number of servers.", "所以通常用奇数个；Baton 的 Redlock 拒绝偶数个节点。"),
		},
		Needs: []lab.Server{lab.Etcd},
		Tests: []string{"open: TestRedlockURLsRefused", "store/etcdstore: TestMemberWithoutLeader"},
		Run:   howManyMayFail,
	},
	{
		Name:  "even-split",
		Topic: lab.Majority,
		Ask:   text("Two clients and four servers: can both lose?", "两个客户端抢四个节点：会不会谁都抢不到？"),
		Answer: [3]lab.Text{
			text("Yes: two servers each is a majority for neither, and if both try again after the same time, it happens again.", "会：各占两个节点，谁都不够多数；如果双方等同样长的时间再试，又会各占两个。"),
			text("Retries after random delays end that sooner or later; with an odd number of servers two clients cannot split all votes evenly, but three can.", "随机延迟后重试，迟早能分出胜负；奇数个节点时，两个客户端不会平分全部选票，三个客户端却可能谁都不够多数。"),
			text("Baton's waiters queue on one of the servers, and only the head asks the others, so they do not split the votes.", "Baton 的等待者先在其中一个节点上排队，只有队首去问其他节点，因此不会瓜分选票。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"store/redlock: TestNoSplitVotes"},
		Run:   evenSplit,
	},
}

// A naiveRedlock is the algorithm as it is often written: SET NX PX on each server.
type naiveRedlock []*testserver.RedisServer

// take returns how many of the servers granted.
func (servers naiveRedlock) take(key, value string, ttl time.Duration) (votes int) {
	for _, s := range servers {
		if answer, err := s.Do("SET", key, value, "NX", "PX", fmt.Sprint(ttl.Milliseconds())); err == nil && answer == "OK" {
			votes++
		}
	}
	return votes
}

// give deletes the key where it has the value.
func (servers naiveRedlock) give(key, value string) {
	for _, s := range servers {
		_, _ = s.Do("EVAL", `if redis.call("GET", KEYS[1]) == ARGV[1] then redis.call("DEL", KEYS[1]) end`, "1", key, value)
	}
}

// startRedisNodes starts independent servers. Durable ones write every command to the disk.
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
	t := r.Table(text("servers down", "宕机节点"), text("SET NX PX: votes", "SET NX PX：得票"), text("Baton", "Baton"), text("the answer took", "答复耗时"))
	for down := range 4 {
		if down > 0 {
			nodes[down-1].Kill()
		}
		votes := nodes.take("naive", fmt.Sprint(down), 5*time.Second)
		nodes.give("naive", fmt.Sprint(down))

		// Baton: the fifth attempt is timed, when it knows which servers are down.
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

// lockWhenPossible tries until the lock is granted, whatever the answers are until then.
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
	// Baton sorts the servers, and the first three are asked first.
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
		for votes := 0; votes < 5; { // the lock gets to all servers a moment later
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

func howManyMayFail(ctx context.Context, r *lab.Run) error {
	var bars []lab.ChartBar
	t := r.Table(text("members", "成员"), text("majority", "多数派"), text("killed, and locks are still granted", "被杀之后仍能加锁"), text("one more killed", "再杀一个"))
	for _, members := range []int{3, 4, 5} {
		cluster := testserver.EtcdMembers(r.Site, members)
		if members == 3 {
			status, err := cluster.Members[0].Do("/v3/maintenance/status", map[string]any{})
			if err != nil {
				return err
			}
			r.With(fmt.Sprint("etcd ", status["version"]))
		}
		locks, _, err := lockerAt(ctx, r, "etcd://"+strings.Join(cluster.Addrs(), ","), baton.Config{TTL: 10 * time.Second})
		if err != nil {
			return err
		}
		tolerated := 0
		for alive := members; alive > 0; alive-- {
			if alive < members {
				cluster.Members[alive].Kill()
			}
			patience := 30 * time.Second // for the election of a leader
			if alive <= members/2 {
				patience = 1500 * time.Millisecond // there is none to wait for
			}
			within, cancel := context.WithTimeout(ctx, patience)
			lease, err := lockWhenPossible(within, locks, fmt.Sprint("order/", alive))
			cancel()
			if err != nil {
				break
			}
			tolerated = members - alive
			_ = lease // it ends with the experiment
		}
		majority := members/2 + 1
		if tolerated != members-majority {
			return unexpected("%d members went on with %d killed", members, tolerated)
		}
		t.Add(members, majority, tolerated, text("no locks", "无法加锁"))
		bars = append(bars, lab.ChartBar{Name: lab.Textf("%d members", "%d 个成员", members), Value: float64(tolerated), Shown: lab.Textf("%d may fail", "可以坏 %d 个", tolerated)})
	}
	r.Chart(&lab.Chart{X: text("members that may fail", "可以坏的成员数"), Bars: bars})
	if _, err := open.Store(ctx, "redlock://127.0.0.1:1,127.0.0.1:2,127.0.0.1:3,127.0.0.1:4"); err == nil || !strings.Contains(err.Error(), "odd number") {
		return unexpected("four servers for Redlock: %v", err)
	}
	r.Say("Three and four members of etcd went on without one, five without two. A member more that makes the number even helps nothing.",
		"etcd 的三个和四个成员都只能坏一个，五个可以坏两个。多一个成员凑成偶数，没有任何好处。")
	return nil
}

func evenSplit(ctx context.Context, r *lab.Run) error {
	const ttl = 10 * time.Second
	nodes, _ := startRedisNodes(r, 4, true)
	a, b := r.Lane(text("A: four servers", "A：四个节点")), r.Lane(text("B: four servers", "B：四个节点"))
	batonA, batonB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B", "Baton：B"))
	r.Start()

	// Both ask at the same time, A from the front and B from the back, and try again after
	// the same delay.
	const rounds = 4
	for range rounds {
		votesA, votesB := 0, 0
		for i := range 2 {
			votesA += nodes[i:i+1].take("fixed", "A", ttl)
			votesB += nodes[3-i:4-i].take("fixed", "B", ttl)
		}
		votesA += nodes[2:].take("fixed", "A", ttl)
		votesB += nodes[:2].take("fixed", "B", ttl)
		if votesA != 2 || votesB != 2 {
			return unexpected("A has %d votes, and B %d", votesA, votesB)
		}
		a.Mark(lab.Rejected, lab.Text{})
		b.Mark(lab.Rejected, lab.Text{})
		nodes.give("fixed", "A")
		nodes.give("fixed", "B")
		if err := wait(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}

	// With random delays, until each has had the lock.
	type result struct {
		who   string
		tries int
		err   error
	}
	done := make(chan result, 2)
	for who, lane := range map[string]*lab.Lane{"A": a, "B": b} {
		go func() {
			for tries := 1; ; tries++ {
				if err := wait(ctx, rand.N(100*time.Millisecond)); err != nil {
					done <- result{err: err}
					return
				}
				if nodes.take("random", who, ttl) >= 3 {
					lane.Begin(lab.Holds, lab.Text{})
					err := wait(ctx, 150*time.Millisecond)
					lane.End()
					nodes.give("random", who)
					done <- result{who, tries, err}
					return
				}
				lane.Mark(lab.Rejected, lab.Text{})
				nodes.give("random", who)
			}
		}()
	}
	tries := map[string]int{}
	for range 2 {
		end := <-done
		if end.err != nil {
			return end.err
		}
		tries[end.who] = end.tries
	}

	// Baton, on three of them: an even number it refuses. Another client holds until both
	// wait, and the servers show where.
	url := "redlock://" + strings.Join(testserver.Addrs(nodes[:3]), ",") + "?durable=true"
	other, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	held, err := lockWhenPossible(ctx, other, "order/42")
	if err != nil {
		return err
	}
	for who, lane := range map[string]*lab.Lane{"A": batonA, "B": batonB} {
		locks, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
		if err != nil {
			return err
		}
		go func() {
			lane.Begin(lab.Waits, lab.Text{})
			lease, err := locks.Lock(ctx, "order/42")
			if err == nil {
				lane.Begin(lab.Holds, lab.Text{})
				err = wait(ctx, 150*time.Millisecond)
				lane.End()
				err = errors.Join(err, lease.Unlock())
			}
			done <- result{who: who, err: err}
		}()
	}
	queues, positions := 0, 0
	for positions < 2 {
		queues, positions = 0, 0
		for _, n := range nodes[:3] {
			answer, err := n.Do("LLEN", "baton:q:{order/42}")
			if err != nil {
				return err
			}
			if waiters, _ := strconv.Atoi(answer); waiters > 0 {
				queues, positions = queues+1, positions+waiters
			}
		}
		if err := wait(ctx, 10*time.Millisecond); err != nil {
			return err
		}
	}
	if err := held.Unlock(); err != nil {
		return err
	}
	for range 2 {
		if end := <-done; end.err != nil {
			return end.err
		}
	}
	if queues != 1 || positions != 2 {
		return unexpected("%d servers have a queue, with %d positions", queues, positions)
	}
	t := r.Table(text("way", "方式"), text("attempts of A", "A 的尝试次数"), text("attempts of B", "B 的尝试次数"))
	t.Add(text("4 servers, the same delay", "4 个节点，固定延迟"), text("4: nobody wins", "4 次：谁都没抢到"), text("4: nobody wins", "4 次：谁都没抢到"))
	t.Add(text("4 servers, random delays", "4 个节点，随机延迟"), tries["A"], tries["B"])
	t = r.Table(text("A and B wait", "A、B 都在等待"), text("servers with a queue", "有队列的节点数"), text("positions in it", "队列里的位置数"))
	t.Add(text("Baton, 3 servers", "Baton，3 个节点"), queues, positions)
	r.Say("Four rounds in step gave each two votes of four, and nobody the lock. With random delays A needed %d attempts and B %d, because the one who is refused tries again and again. Of Baton's %d servers %d had a queue, with both waiters in it, and each was granted the lock by one call of Lock.",
		"同步的四轮里双方各得四票中的两票，谁都没拿到锁。改为随机延迟后，A 试了 %d 次，B 试了 %d 次，因为被拒绝的一方要反复重试。Baton 的 %d 个节点里有 %d 个有队列，双方都排在里面，各调用一次 Lock 就拿到了锁。", tries["A"], tries["B"], 3, queues)
	return nil
}
