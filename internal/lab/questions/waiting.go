package questions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/lab"
	"github.com/batonhq/baton/internal/testserver"
)

// waiting are the questions about who is next.
var waiting = []*lab.Question{
	{
		Name:  "herd",
		Topic: lab.Waiting,
		Ask:   text("ZooKeeper locks: why watch the node before one's own, and not the parent?", "ZooKeeper 锁：为什么要监听前一个节点，而不是父节点？"),
		Answer: [3]lab.Text{
			text("If all waiters watch the parent, or the lowest node, each release wakes all of them, and all but one wake up for nothing: the herd effect.", "如果所有等待者都监听父节点或最小的节点，每次释放都会唤醒全部等待者，而只有一个能拿到锁：羊群效应。"),
			text("The server's work for one hand-over then grows with the number of waiters; if each watches the one before it, it stays the same.", "这样每次移交给服务器带来的工作量随等待者数量增长；每个等待者只监听前一个节点，工作量就不变。"),
			text("Baton's waiters watch the one before them.", "Baton 的等待者只监听前一个节点。"),
		},
		Needs:  []lab.Server{lab.ZooKeeper},
		Proofs: []lab.Proof{{File: "store/zkstore/cost_test.go", Line: `"eight processes that wait":   {9, 5},`}},
		Run:    herd,
	},
	{
		Name:  "read-write-order",
		Topic: lab.Waiting,
		Ask:   text("Read-write locks: can readers starve a writer?", "读写锁：读者会不会把写者饿死？"),
		Answer: [3]lab.Text{
			text("Yes, if a reader is let in whenever others read: as long as readers overlap, the writer waits.", "会。如果只要有人在读就放新读者进来，读者一直首尾重叠，写者就一直等。"),
			text("In order of arrival a reader waits for the last writer before it, and a writer for all before it.", "按到达顺序：读者只等它之前的最后一个写者，写者等它之前的所有人。"),
			text("Baton does so: readers that stand next to each other hold together, and nobody is overtaken.", "Baton 就是这样：相邻的读者一起持有，谁也不会被插队。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "drivertest/shared.go", Line: `name:  "readers and writers in strict order",`}, {File: "drivertest/shared.go", Line: `name:  "readers behind a waiting writer wait",`}},
		Run:    readWriteOrder,
	},
	{
		Name:  "fair-queue",
		Topic: lab.Waiting,
		Ask:   text("A loop that tries again, or a queue: who gets the lock first?", "循环重试还是排队：谁先拿到锁？"),
		Answer: [3]lab.Text{
			text("With retry loops whoever happens to try first after a release gets the lock, also one that came last.", "循环重试时，释放之后谁碰巧先试谁就拿到锁，哪怕它是最后来的。"),
			text("So the unlucky wait much longer than the others, and there is no bound.", "于是运气差的等得比别人久得多，而且没有上限。"),
			text("In a queue the order of grants is the order of arrival; Baton queues in the store, across processes.", "排队时授予的顺序就是到达的顺序；Baton 在存储里排队，跨进程有效。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "drivertest/queue.go", Line: `name:  "first come, first served",`}, {File: "drivertest/queue.go", Line: `name:  "nobody barges in after a release",`}},
		Run:    fairQueue,
	},
	{
		Name:  "polling-or-push",
		Topic: lab.Waiting,
		Ask:   text("Waiting for a lock in Redis: poll, or be told?", "等 Redis 锁：轮询，还是等通知？"),
		Answer: [3]lab.Text{
			text("Polling costs a command for each waiter and interval, for as long as they wait, and the lock lies idle until someone looks.", "轮询时，每个等待者每个间隔都要发一条命令，等多久发多久；而且释放后锁要空闲到有人来看为止。"),
			text("If the release grants the lock to the next waiter and tells it, a hand-over costs a few commands, however many wait.", "如果释放时直接授予下一个等待者并通知它，每次移交只要几条命令，与等待者数量无关。"),
			text("Baton's release does that in one script, and the waiters look now and then only to show that they live.", "Baton 的释放在一个脚本里完成这两件事；等待者只偶尔发一条命令，证明自己还活着。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "drivertest/watch.go", Line: `name:  "a hand-over is hinted",`}},
		Run:    pollingOrPush,
	},
	{
		Name:  "one-waiter-per-process",
		Topic: lab.Waiting,
		Ask:   text("1000 goroutines of one process want the same lock: what does the store see?", "一个进程里 1000 个 goroutine 抢同一把锁：存储看到什么？"),
		Answer: [3]lab.Text{
			text("If each asks by itself, 1000 waiters and their commands.", "如果各自去抢，存储看到 1000 个等待者和它们的全部命令。"),
			text("If they first queue within the process, one waiter.", "如果先在进程内排队，存储只看到一个等待者。"),
			text("Baton's Locker does so: one of them asks the store, and hands the lock on within the process.", "Baton 的 Locker 就是这样：只有一个去问存储，拿到锁后在进程内移交。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "locker_test.go", Line: `func TestThousandGoroutinesAreOneWaiter(t *testing.T) {`}},
		Run:    oneWaiterPerProcess,
	},
	{
		Name:  "zookeeper-session",
		Topic: lab.Waiting,
		Ask:   text("ZooKeeper: can a client that is cut off believe it still holds the lock?", "ZooKeeper：断网的客户端会不会以为自己还持有锁？"),
		Answer: [3]lab.Text{
			text("Yes: the server ends its session and deletes the ephemeral node, and cannot tell a client that it does not reach.", "会。服务器结束会话并删除临时节点，却无法通知一个连不上的客户端。"),
			text("So a client must stop by its own clock, before the session can have ended.", "所以客户端必须按自己的时钟，在会话可能结束之前停下来。"),
			text("A lease of Baton lasts for half of the session's time-out from the last proof that the session lives.", "Baton 的租约从最后一次证明会话存活算起，最多是会话超时的一半。"),
		},
		Needs:  []lab.Server{lab.ZooKeeper},
		Proofs: []lab.Proof{{File: "store/zkstore/faults_test.go", Line: `func TestSilentConnection(t *testing.T) {`}},
		Run:    zookeeperSession,
	},
	{
		Name:  "ephemeral-ghost",
		Topic: lab.Waiting,
		Ask:   text("ZooKeeper: the node was created and the answer was lost. What now?", "ZooKeeper：节点已创建，应答却丢了，怎么办？"),
		Answer: [3]lab.Text{
			text("A client that creates again waits behind its own first node, which nobody knows: all wait until the session ends.", "客户端再创建一次，就会排在自己的第一个节点后面；没人认得那个节点，所有人都要等到会话结束。"),
			text("The name has to carry an ID of the attempt, so that the client finds its node when it is connected again.", "节点名里要带上这次尝试的 ID，重连之后客户端才能找到自己的节点。"),
			text("Baton's names do, in the way of Curator's protected nodes.", "Baton 的节点名就是这样，与 Curator 的 protected 节点相同。"),
		},
		Needs:  []lab.Server{lab.ZooKeeper},
		Proofs: []lab.Proof{{File: "store/zkstore/faults_test.go", Line: `func TestLostAnswersLeaveNothing(t *testing.T) {`}},
		Run:    ephemeralGhost,
	},
	{
		Name:  "dead-waiter",
		Topic: lab.Waiting,
		Ask:   text("A waiter dies in the queue: how long does it hold up the others?", "等待者在队列里崩溃：会把后面的人挡多久？"),
		Answer: [3]lab.Text{
			text("In a plain list, for ever: its entry stays at the head, and nobody removes it.", "如果队列只是一个普通列表：永远。它的记录停在队首，没人删除。"),
			text("So positions have to expire as locks do.", "所以队列里的位置也要像锁一样会过期。"),
			text("A position of Baton expires after 1.5 s unless its process renews it: a dead waiter costs 3 s at most, on ZooKeeper the session's time-out.", "Baton 的位置如果没有续期，1.5 秒后过期：崩溃的等待者最多耽误 3 秒；在 ZooKeeper 上是会话超时的时间。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "drivertest/queue.go", Line: `name:  "a crashed waiter costs at most 3 s",`}, {File: "drivertest/queue.go", Line: `name:  "a place that is not refreshed is lost",`}},
		Run:    deadWaiter,
	},
}

// herd lets waiters, each with a session of its own, hand a lock on in four ways, and counts.
func herd(ctx context.Context, r *lab.Run) error {
	counts := []int{10, 30, 100, 300, 1000}
	server := startZooKeeper(r, "maxSessionTimeout=1200000") // so long that no pings are counted
	sessions := make([]*zk.Conn, counts[len(counts)-1]+1)
	for i := range sessions {
		conn, err := zkSession(ctx, r, server.Addr, 20*time.Minute)
		if err != nil {
			return err
		}
		sessions[i] = conn
	}
	ways := []string{"parent", "lowest", "before"}
	lines := []*lab.Line{
		{Name: text("all watch the parent", "都监听父节点")},
		{Name: text("all watch the lowest node", "都监听最小节点")},
		{Name: text("each watches the one before", "各自监听前一个")},
		{Name: text("Baton", "Baton")},
	}
	t := r.Table(text("waiters", "等待者"), text("parent: requests, wakes", "父节点：请求数，唤醒数"), text("lowest node", "最小节点"), text("the one before", "前一个节点"), text("Baton: requests", "Baton：请求数"))
	for _, n := range counts {
		cells := []any{n}
		for i, way := range ways {
			requests, wakes, err := handOn(server, r.Site, fmt.Sprintf("/%s-%d", way, n), way, sessions[:n+1])
			if err != nil {
				return err
			}
			lines[i].Points = append(lines[i].Points, [2]float64{float64(n), float64(requests)})
			cells = append(cells, fmt.Sprintf("%d, %d", requests, wakes))
			// Each of those who wake asks at least once; and of all who wait one has to wake.
			if way == "before" && (wakes != 1 || requests > 5) || way != "before" && (wakes < int64(n) || requests < wakes) {
				return unexpected("%d waiters that watch %s: %d requests and %d wakes", n, way, requests, wakes)
			}
		}
		if n > 300 { // each waiter of Baton is a whole client here
			t.Add(append(cells, "-")...)
			continue
		}
		requests, err := batonHandsOn(ctx, r, server, fmt.Sprintf("/baton-%d", n), n)
		if err != nil {
			return err
		}
		if requests < 1 || requests > 10 {
			return unexpected("%d waiters of Baton: %v requests for a hand-over", n, requests)
		}
		lines[3].Points = append(lines[3].Points, [2]float64{float64(n), requests})
		t.Add(append(cells, fmt.Sprintf("%.0f", requests))...)
		r.Chart(&lab.Chart{X: text("waiters", "等待者"), Y: text("requests for one hand-over", "每次移交的请求数"), LogX: true, LogY: true, Lines: lines})
	}
	last := func(i int) float64 { return lines[i].Points[len(lines[i].Points)-1][1] }
	r.Say("With 1000 waiters one hand-over cost %.0f requests if all watch the parent, %.0f if all watch the lowest node, and %.0f if each watches the one before it. Baton needed %.0f with 300 waiters.",
		"1000 个等待者时，都监听父节点，每次移交要 %.0f 个请求；都监听最小节点，要 %.0f 个；各自监听前一个节点，只要 %.0f 个。Baton 在 300 个等待者时用了 %.0f 个。", last(0), last(1), last(2), last(3))
	return nil
}

// batonHandsOn does the same with Baton, a Locker and a session for each waiter. Waiters also
// show twice a second that they live, whoever holds. So of five hand-overs the one counts
// in which they sent the least.
func batonHandsOn(ctx context.Context, r *lab.Run, server *testserver.ZooKeeperServer, root string, waiters int) (requests float64, err error) {
	waits, leases, failed := make(chan bool, waiters), make(chan *baton.Lease), make(chan error, waiters)
	events := &baton.Events{Waiting: func(context.Context, baton.LockEvent) { waits <- true }}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var held *baton.Lease
	for i := range waiters + 1 {
		locks, _, err := lockerAt(ctx, r, "zk://"+server.Addr+root+"?session=20m", baton.Config{TTL: time.Minute, Events: events})
		if err != nil {
			return 0, err
		}
		if i == 0 {
			if held, err = locks.Lock(ctx, "k"); err != nil {
				return 0, err
			}
			continue
		}
		go func() {
			lease, err := locks.Lock(ctx, "k")
			if err != nil {
				failed <- err
				return
			}
			select {
			case leases <- lease:
			case <-ctx.Done():
			}
		}()
		select {
		case <-waits:
		case err := <-failed:
			return 0, err
		}
	}
	least := int64(math.MaxInt64)
	for range 5 {
		before := server.Count(r.Site)
		if err := held.Unlock(); err != nil {
			return 0, err
		}
		select {
		case held = <-leases:
		case err := <-failed:
			return 0, err
		}
		least = min(least, server.Count(r.Site).Requests-before.Requests-1)
	}
	return float64(least), held.Unlock()
}

// handOn queues on one node for each session, and lets the first release. It returns what
// that costs: requests, and sessions that wake.
func handOn(server *testserver.ZooKeeperServer, site *testserver.Site, dir, way string, sessions []*zk.Conn) (requests, wakes int64, err error) {
	if _, err := sessions[0].Create(dir, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
		return 0, 0, err
	}
	nodes := make([]string, len(sessions))
	for i, s := range sessions {
		if nodes[i], err = s.Create(dir+"/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll)); err != nil {
			return 0, 0, err
		}
	}

	// Of each one that looked: whether it holds now.
	looked, woken, failed := make(chan bool), new(atomic.Int64), make(chan error, len(sessions))
	for i, s := range sessions[1:] {
		own := strings.TrimPrefix(nodes[i+1], dir+"/")
		go func() {
			for {
				event, err := look(s, dir, own, way)
				if err != nil {
					failed <- err
					return
				}
				looked <- event == nil
				if event == nil {
					return
				}
				<-event
				woken.Add(1)
			}
		}()
	}
	await := func(looks int, grants int) error {
		for looks > 0 || grants > 0 {
			select {
			case holds := <-looked:
				looks--
				if holds {
					grants--
				}
			case err := <-failed:
				return err
			}
		}
		return nil
	}
	waiters := len(sessions) - 1
	if err := await(waiters, 0); err != nil {
		return 0, 0, err
	}
	before := server.Count(site)
	if err := sessions[0].Delete(nodes[0], -1); err != nil {
		return 0, 0, err
	}
	looks := waiters
	if way == "before" {
		looks = 1
	}
	if err := await(looks, 1); err != nil {
		return 0, 0, err
	}
	return server.Count(site).Requests - before.Requests - 1, woken.Load(), nil
}

// look lists the queue. Its event is nil if own is the first node, which holds.
func look(s *zk.Conn, dir, own, way string) (event <-chan zk.Event, err error) {
	for {
		var queue []string
		if way == "parent" {
			queue, _, event, err = s.ChildrenW(dir)
		} else {
			queue, _, err = s.Children(dir)
		}
		if err != nil {
			return nil, err
		}
		slices.Sort(queue)
		if queue[0] == own {
			return nil, nil
		}
		watched := queue[0]
		switch way {
		case "parent":
			return event, nil
		case "before":
			watched = queue[slices.Index(queue, own)-1]
		}
		there, _, event, err := s.ExistsW(dir + "/" + watched)
		if there || err != nil {
			return event, err
		}
	}
}

func deadWaiter(ctx context.Context, r *lab.Run) error {
	server := startRedis(r)
	url := "redis://" + server.Addr
	naiveC := r.Lane(text("list: C, behind B", "列表：C，在 B 之后"))
	lanes := map[string]*lab.Lane{}
	for _, who := range []string{"A", "B", "C"} {
		lanes[who] = r.Lane(lab.Textf("Baton: %s", "Baton：%s", who))
	}
	locksA, _, err := lockerAt(ctx, r, url, baton.Config{})
	if err != nil {
		return err
	}
	lease, err := locksA.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	r.Start()
	lanes["A"].Begin(lab.Holds, lab.Text{})

	// A list as a queue: whoever is at the head may work, and removes itself afterwards.
	for _, who := range []string{"A", "B", "C"} {
		if _, err := server.Do("RPUSH", "queue", who); err != nil {
			return err
		}
	}
	naiveC.Begin(lab.Waits, lab.Text{})

	var crashB func()
	granted := make(chan error, 1)
	for _, who := range []string{"B", "C"} {
		waits := make(chan bool, 1)
		locks, crash, err := lockerAt(ctx, r, url, baton.Config{Events: &baton.Events{
			Waiting: func(context.Context, baton.LockEvent) { waits <- true },
		}})
		if err != nil {
			return err
		}
		go func() {
			lease, err := locks.Lock(ctx, "order/42")
			if who == "C" {
				granted <- err
			} else if err == nil {
				_ = lease // B has crashed
			}
		}()
		if who == "B" {
			crashB = crash
		}
		select {
		case <-waits:
			lanes[who].Begin(lab.Waits, lab.Text{})
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := wait(ctx, 700*time.Millisecond); err != nil {
		return err
	}
	crashB()
	lanes["B"].Mark(lab.Crashed, text("B crashes while it waits", "B 在等待时崩溃"))
	lanes["B"].End()
	if err := wait(ctx, 100*time.Millisecond); err != nil {
		return err
	}
	if _, err := server.Do("LREM", "queue", "1", "A"); err != nil {
		return err
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	released := r.Since()
	lanes["A"].Mark(lab.Released, text("A releases", "A 释放"))
	lanes["A"].End()
	if err := <-granted; err != nil {
		return err
	}
	held := r.Since() - released
	lanes["C"].Begin(lab.Holds, lab.Text{})
	lanes["C"].Mark(lab.Granted, text("the position of B has expired", "B 的位置已过期"))
	if err := wait(ctx, time.Second); err != nil {
		return err
	}
	head, err := server.Do("LINDEX", "queue", "0")
	if err != nil {
		return err
	}
	naiveC.Mark(lab.Harm, text("B is still at the head", "B 还在队首"))
	t := r.Table(text("queue", "队列"), text("head after A released", "A 释放后的队首"), text("C waited after that", "之后 C 等了"))
	t.Add("RPUSH, LINDEX, LREM", head, text("for ever", "永远"))
	t.Add("Baton", text("B, until its position expires", "B，直到它的位置过期"), held.Round(10*time.Millisecond))
	if head != "B" || held > 4*time.Second { // 3 s, and a second for a machine that is busy
		return unexpected("the head of the list is %s, and C waited %v", head, held)
	}
	r.Say("In the list B stayed at the head. With Baton C was granted %d ms after A had released, with B dead in front of it.",
		"列表里 B 一直停在队首。用 Baton 时，虽然前面的 B 已经崩溃，C 在 A 释放 %d ms 之后就获得了锁。", held.Milliseconds())
	return nil
}

func zookeeperSession(ctx context.Context, r *lab.Run) error {
	const session = 2 * time.Second
	server := startZooKeeper(r, "tickTime=500")
	away := faultproxy.New(r.Site, server.Addr)
	connA, err := zkSession(ctx, r, away.Addr, session)
	if err != nil {
		return err
	}
	connB, err := zkSession(ctx, r, server.Addr, session)
	if err != nil {
		return err
	}
	locksA, _, err := lockerAt(ctx, r, "zk://"+away.Addr+"/baton?session=2s", baton.Config{TTL: session / 2})
	if err != nil {
		return err
	}
	locksB, _, err := lockerAt(ctx, r, "zk://"+server.Addr+"/baton?session=2s", baton.Config{TTL: session / 2})
	if err != nil {
		return err
	}
	naiveA, naiveB := r.Lane(text("ephemeral: A", "临时节点：A")), r.Lane(text("ephemeral: B", "临时节点：B"))
	batonA, batonB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B", "Baton：B"))
	if _, err := connA.Create("/lock", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		return err
	}
	lease, err := locksA.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	r.Start()
	naiveA.Begin(lab.Holds, lab.Text{})
	batonA.Begin(lab.Holds, lab.Text{})
	_, _, gone, err := connB.ExistsW("/lock")
	if err != nil {
		return err
	}
	naiveB.Begin(lab.Waits, lab.Text{})
	batonB.Begin(lab.Waits, lab.Text{})
	type grant struct {
		lease *baton.Lease
		at    time.Duration
		err   error
	}
	next := make(chan grant, 1)
	go func() {
		lease, err := locksB.Lock(ctx, "order/42")
		batonB.Begin(lab.Holds, lab.Text{})
		next <- grant{lease, r.Since(), err}
	}()
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}

	away.Hold(faultproxy.ToServer)
	away.Hold(faultproxy.ToClient)
	cut := r.Since()
	batonA.Mark(lab.Noted, text("A is cut off", "A 断网"))
	select {
	case <-lease.Done():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	told := r.Since()
	batonA.Mark(lab.Told, text("A is told by its own clock", "A 按自己的时钟得知"))
	batonA.End()
	select {
	case <-gone:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if _, err := connB.Create("/lock", nil, zk.FlagEphemeral, zk.WorldACL(zk.PermAll)); err != nil {
		return err
	}
	taken := r.Since()
	naiveA.Begin(lab.Wrong, lab.Text{})
	naiveB.Begin(lab.Holds, lab.Text{})
	naiveB.Mark(lab.Harm, text("two believe", "两个都以为持有"))
	second := <-next
	if second.err != nil {
		return second.err
	}
	if err := wait(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	t := r.Table(text("way", "方式"), text("A is told after the cut", "断网后 A 得知"), text("B holds after the cut", "断网后 B 持有"))
	t.Add(text("ephemeral node", "临时节点"), text("not at all", "一直不知道"), fmt.Sprintf("%d ms", (taken-cut).Milliseconds()))
	t.Add("Baton", fmt.Sprintf("%d ms", (told-cut).Milliseconds()), fmt.Sprintf("%d ms", (second.at-cut).Milliseconds()))
	if told > second.at || second.lease.Token() <= lease.Token() {
		return unexpected("A was told after %v, B was granted after %v", told, second.at)
	}
	r.Say("The server gave B the lock %d ms after A was cut off, and the program that only looks at its own node did not know. Baton told A after %d ms, and granted B after %d ms.",
		"断网 %d ms 之后服务器把锁给了 B，而只看自己节点的程序毫不知情。Baton 在 %d ms 后告知 A，在 %d ms 后授予 B。", (taken - cut).Milliseconds(), (told - cut).Milliseconds(), (second.at - cut).Milliseconds())
	return nil
}

func ephemeralGhost(ctx context.Context, r *lab.Run) error {
	server := startZooKeeper(r)
	away := faultproxy.New(r.Site, server.Addr)
	conn, err := zkSession(ctx, r, away.Addr, 10*time.Second)
	if err != nil {
		return err
	}
	direct, err := zkSession(ctx, r, server.Addr, 10*time.Second)
	if err != nil {
		return err
	}
	plain, protected := r.Lane(text("create again: A", "再创建一次：A")), r.Lane(text("with an ID: A", "名字带 ID：A"))
	withBaton := r.Lane(text("Baton: A", "Baton：A"))
	for _, dir := range []string{"/plain", "/protected", "/baton"} {
		if _, err := direct.Create(dir, nil, 0, zk.WorldACL(zk.PermAll)); err != nil {
			return err
		}
	}
	locks, _, err := lockerAt(ctx, r, "zk://"+away.Addr+"/baton", baton.Config{})
	if err != nil {
		return err
	}
	r.Start()

	// The first attempt is done, and its answer never comes.
	lost := away.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("/plain/lock-")) })
	create := func() (string, error) {
		return conn.Create("/plain/lock-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
	}
	if _, err := create(); err == nil {
		return unexpected("the answer came through")
	}
	<-lost
	plain.Mark(lab.Noted, text("the answer is lost", "应答丢失"))
	own, err := create()
	for err != nil {
		if stop := wait(ctx, 20*time.Millisecond); stop != nil {
			return errors.Join(stop, err)
		}
		own, err = create()
	}
	plain.Begin(lab.Waits, lab.Text{})
	plain.Mark(lab.Harm, text("behind its own first node", "排在自己的第一个节点后面"))
	queue, _, err := direct.Children("/plain")
	if err != nil {
		return err
	}
	ghosts := len(queue) - 1
	event, err := look(direct, "/plain", strings.TrimPrefix(own, "/plain/"), "before")
	if err != nil {
		return err
	}

	// The client's own remedy.
	lost = away.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("/protected/_c_")) })
	if _, err := conn.CreateProtectedEphemeralSequential("/protected/lock-", nil, zk.WorldACL(zk.PermAll)); err != nil {
		return err
	}
	<-lost
	protected.Begin(lab.Holds, lab.Text{})
	protected.Mark(lab.Granted, text("finds its node again", "找到了自己的节点"))
	named, _, err := direct.Children("/protected")
	if err != nil {
		return err
	}

	lost = away.CutAfterRequest(func(request []byte) bool {
		return bytes.Contains(request, []byte("order")) && bytes.Contains(request, []byte("/_c_"))
	})
	lease, err := locks.Lock(ctx, "order-42")
	if err != nil {
		return err
	}
	<-lost
	withBaton.Begin(lab.Holds, lab.Text{})
	withBaton.Mark(lab.Granted, text("finds its node again", "找到了自己的节点"))
	info, err := locks.Inspect(ctx, "order-42")
	if err != nil {
		return err
	}
	left := len(info.Holders) + len(info.Waiters) - 1

	select {
	case <-event:
		return unexpected("the node that nobody owns is gone while the session lives")
	case <-time.After(1500 * time.Millisecond): // A goes on waiting for itself
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	withBaton.Mark(lab.Released, lab.Text{})
	withBaton.End()
	conn.Close() // ends the session: its nodes go
	select {
	case <-event:
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	plain.End()
	protected.End()
	plain.Mark(lab.Noted, text("its session ends", "会话结束"))
	t := r.Table(text("after a lost answer", "应答丢失之后"), text("nodes that nobody owns", "无主的节点"), text("A", "A"))
	t.Add(text("create again", "再创建一次"), ghosts, text("waits until its session ends", "等到自己的会话结束"))
	t.Add(text("name with an ID (protected)", "名字带 ID（protected）"), len(named)-1, text("holds", "持有"))
	t.Add("Baton", left, text("holds", "持有"))
	if ghosts != 1 || len(named) != 1 || left != 0 {
		return unexpected("nodes that nobody owns: %d, %d and %d", ghosts, len(named)-1, left)
	}
	r.Say("The second create left %d node that nobody owns, and A waited behind it for as long as its session lived. With an ID in the name no node was left.",
		"再创建一次留下了 %d 个无主节点，只要会话还活着，A 就一直排在它后面。名字里带 ID 时，一个也没有留下。", ghosts)
	return nil
}

func readWriteOrder(ctx context.Context, r *lab.Run) error {
	server := startRedis(r)
	url := "redis://" + server.Addr
	readers, writer := r.Lane(text("readers first: R", "读者优先：读者")), r.Lane(text("readers first: W", "读者优先：写者"))
	order := []string{"R1", "R2", "W1", "R3", "W2"} // as they come
	lanes := map[string]*lab.Lane{}
	lockers, waits := map[string]*baton.Locker{}, make(chan bool, len(order))
	for _, who := range order {
		lanes[who] = r.Lane(lab.Textf("Baton: %s", "Baton：%s", who))
		locks, _, err := lockerAt(ctx, r, url, baton.Config{Events: &baton.Events{
			Waiting: func(context.Context, baton.LockEvent) { waits <- true },
		}})
		if err != nil {
			return err
		}
		lockers[who] = locks
	}
	r.Start()

	// Readers first: a reader counts itself unless a writer holds, a writer needs a count of 0.
	const enter = `if redis.call("EXISTS", "writer") == 1 then return 0 end redis.call("INCR", "readers") return 1`
	const write = `if tonumber(redis.call("GET", "readers") or 0) > 0 then return 0 end redis.call("SET", "writer", 1) return 1`
	if in, err := server.Do("EVAL", enter, "0"); err != nil || in != "1" {
		return unexpected("the first reader: %s, %v", in, err)
	}
	readers.Begin(lab.Shares, lab.Text{})
	writer.Begin(lab.Waits, lab.Text{})

	// Baton: each caller holds for a while.
	type event struct {
		who, what string
		err       error
	}
	events, granted, second := make(chan event, 20), make(chan bool, len(order)), make(chan bool)
	for _, who := range order {
		lane, kind, options := lanes[who], lab.Holds, []baton.Option(nil)
		if who[0] == 'R' {
			kind, options = lab.Shares, []baton.Option{baton.Shared()}
		}
		go func() {
			lane.Begin(lab.Waits, lab.Text{})
			lease, err := lockers[who].Lock(ctx, "order/42", options...)
			if err != nil {
				events <- event{who: who, err: err}
				return
			}
			lane.Begin(kind, lab.Text{})
			events <- event{who: who, what: "begins"}
			granted <- true
			err = wait(ctx, 500*time.Millisecond)
			switch who {
			case "R2":
				close(second)
			case "R1":
				<-second // it holds until the second reader does, however slow that is
			}
			lane.End()
			events <- event{who: who, what: "ends"}
			if err := errors.Join(err, lease.Unlock()); err != nil {
				events <- event{who: who, err: err}
			}
		}()
		select { // the next one comes when this one has its position
		case <-waits:
		case <-granted:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}

	// Meanwhile one reader of the naive lock comes before the other has gone.
	tries := 0
	for range 12 {
		if in, err := server.Do("EVAL", enter, "0"); err != nil || in != "1" {
			return unexpected("a reader: %s, %v", in, err)
		}
		if err := wait(ctx, 150*time.Millisecond); err != nil {
			return err
		}
		if _, err := server.Do("DECR", "readers"); err != nil {
			return err
		}
		tries++
		if in, err := server.Do("EVAL", write, "0"); err != nil || in != "0" {
			return unexpected("the writer got in beside readers: %s, %v", in, err)
		}
	}
	writer.Mark(lab.Harm, text("a reader was always there", "一直有读者在"))

	var seen []string
	for range 2 * len(order) {
		e := <-events
		if e.err != nil {
			return e.err
		}
		seen = append(seen, e.who+" "+e.what)
	}
	after := func(later string, earlier ...string) bool {
		for _, e := range earlier {
			if slices.Index(seen, later) < slices.Index(seen, e) {
				return false
			}
		}
		return true
	}
	if !after("W1 begins", "R1 ends", "R2 ends") || !after("R3 begins", "W1 ends") || !after("W2 begins", "R3 ends") || !after("R1 ends", "R2 begins") {
		return unexpected("the order was %v", seen)
	}
	t := r.Table(text("order of arrival: R1 R2 W1 R3 W2", "到达顺序：R1 R2 W1 R3 W2"), text("what happened", "结果"))
	t.Add(text("readers first", "读者优先"), lab.Textf("the writer tried %d times, and never got in", "写者试了 %d 次，一次也没进去", tries))
	t.Add("Baton", text("R1 and R2 together, W1, R3, W2", "R1 和 R2 一起，然后 W1、R3、W2"))
	r.Say("With readers first the writer tried %d times in vain, because two readers took turns. Baton granted in order of arrival, R1 and R2 together.",
		"读者优先时，两个读者轮流进入，写者试了 %d 次都没成功。Baton 按到达顺序授予，R1 和 R2 一起持有。", tries)
	return nil
}

func fairQueue(ctx context.Context, r *lab.Run) error {
	const callers, hold = 20, 25 * time.Millisecond
	server := startRedis(r)

	// Everybody comes while the lock is held, one after the other.
	if _, err := server.Do("SET", "naive", "first"); err != nil {
		return err
	}
	type turn struct {
		who    int
		waited time.Duration
		err    error
	}
	turns := make(chan turn, callers)
	for who := range callers {
		began := time.Now()
		go func() {
			for {
				answer, err := server.Do("SET", "naive", fmt.Sprint(who), "NX")
				if err == nil && answer == "OK" {
					waited := time.Since(began)
					err = wait(ctx, hold)
					_, failed := server.Do("DEL", "naive")
					turns <- turn{who, waited, errors.Join(err, failed)}
					return
				}
				if err = errors.Join(err, wait(ctx, 10*time.Millisecond+rand.N(40*time.Millisecond))); err != nil {
					turns <- turn{err: err}
					return
				}
			}
		}()
		if err := wait(ctx, 5*time.Millisecond); err != nil {
			return err
		}
	}
	if _, err := server.Do("DEL", "naive"); err != nil {
		return err
	}
	measure := func() (overtaken int, longest time.Duration, err error) {
		var order []int
		for range callers {
			select {
			case t := <-turns:
				if t.err != nil {
					return 0, 0, t.err
				}
				for _, before := range order {
					if before > t.who {
						overtaken++
					}
				}
				order, longest = append(order, t.who), max(longest, t.waited)
			case <-ctx.Done():
				return 0, 0, context.Cause(ctx)
			}
		}
		return overtaken, longest, nil
	}
	loops, longestLoop, err := measure()
	if err != nil {
		return err
	}

	first, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{})
	if err != nil {
		return err
	}
	lease, err := first.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	for who := range callers {
		waits := make(chan bool, 1)
		locks, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{Events: &baton.Events{
			Waiting: func(context.Context, baton.LockEvent) { waits <- true },
		}})
		if err != nil {
			return err
		}
		began := time.Now()
		go func() {
			lease, err := locks.Lock(ctx, "order/42")
			if err != nil {
				turns <- turn{err: err}
				return
			}
			waited := time.Since(began)
			err = wait(ctx, hold)
			turns <- turn{who, waited, err} // before the next one can
			if err := lease.Unlock(); err != nil {
				turns <- turn{err: err}
			}
		}()
		select {
		case <-waits:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	queue, longestQueue, err := measure()
	if err != nil {
		return err
	}
	if loops == 0 || queue != 0 {
		return unexpected("callers were overtaken %d times with loops, %d times in the queue", loops, queue)
	}
	t := r.Table(text("way", "方式"), text("callers overtaken", "被插队次数"), text("longest wait", "最长等待"))
	t.Add(text("SET NX in a loop", "循环 SET NX"), loops, longestLoop.Round(time.Millisecond))
	t.Add(text("Baton: queue", "Baton：排队"), queue, longestQueue.Round(time.Millisecond))
	r.Chart(&lab.Chart{X: text("times that a later caller came before an earlier one", "后来者先于先到者的次数"), Bars: []lab.ChartBar{
		{Name: text("retry loops", "循环重试"), Value: float64(loops), Shown: lab.Textf("%d times", "%d 次", loops), Bad: true},
		{Name: text("queue (Baton)", "排队（Baton）"), Value: 0, Shown: text("never", "从不")},
	}})
	r.Say("Twenty callers came one after the other, and each held for 25 ms. With retry loops a later caller came before an earlier one %d times, and the longest wait was %d ms; in Baton's queue never, and %d ms.",
		"二十个调用者依次到达，各持有 25 ms。循环重试时，后来者先于先到者 %d 次，最长等待 %d ms；在 Baton 的队列里一次也没有，最长等待 %d ms。", loops, longestLoop.Milliseconds(), longestQueue.Milliseconds())
	return nil
}

// commands counts the commands that a server has executed: these, or all but INFO. A script
// is one, and what it calls counts, too.
func commands(server *testserver.RedisServer, these ...string) (n int, err error) {
	info, err := server.Do("INFO", "commandstats")
	for _, m := range commandCalls.FindAllStringSubmatch(info, -1) {
		calls, bad := strconv.Atoi(m[2])
		err = errors.Join(err, bad)
		if len(these) == 0 && m[1] != "info" || slices.Contains(these, m[1]) {
			n += calls
		}
	}
	return n, err
}

var commandCalls = regexp.MustCompile(`cmdstat_([^:]+):calls=(\d+)`)

// sent are the commands by which Baton talks to Redis. All others are within its scripts.
var sent = []string{"eval", "evalsha", "hello", "ping", "subscribe"}

func pollingOrPush(ctx context.Context, r *lab.Run) error {
	const waiters, hold, every = 10, 200 * time.Millisecond, 50 * time.Millisecond
	server := startRedis(r)
	done := make(chan error, waiters)

	// Each waiter polls.
	before, err := commands(server)
	if err != nil {
		return err
	}
	for who := range waiters {
		go func() {
			for {
				answer, err := server.Do("SET", "naive", fmt.Sprint(who), "NX")
				if err == nil && answer == "OK" {
					err = wait(ctx, hold)
					_, failed := server.Do("DEL", "naive")
					done <- errors.Join(err, failed)
					return
				}
				if err = errors.Join(err, wait(ctx, every)); err != nil {
					done <- err
					return
				}
			}
		}()
	}
	for range waiters {
		if err := <-done; err != nil {
			return err
		}
	}
	after, err := commands(server)
	if err != nil {
		return err
	}
	polled := float64(after-before) / waiters

	// Each waiter is told. Each knows the server already: the scripts are there.
	var all []*baton.Locker
	for range waiters {
		locks, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{})
		if err != nil {
			return err
		}
		all = append(all, locks)
	}
	var requests, total int
	for _, hold := range []time.Duration{0, hold} { // the second time counts
		if before, err = commands(server); err != nil {
			return err
		}
		sentBefore, err := commands(server, sent...)
		if err != nil {
			return err
		}
		for _, locks := range all {
			go func() {
				lease, err := locks.Lock(ctx, "order/42")
				if err == nil {
					err = errors.Join(wait(ctx, hold), lease.Unlock())
				}
				done <- err
			}()
		}
		for range waiters {
			if err := <-done; err != nil {
				return err
			}
		}
		if after, err = commands(server); err != nil {
			return err
		}
		sentAfter, err := commands(server, sent...)
		if err != nil {
			return err
		}
		requests, total = sentAfter-sentBefore, after-before
	}
	pushed, within := float64(requests)/waiters, float64(total-requests)/waiters
	if pushed >= polled {
		return unexpected("%v commands of those who poll, and %v of Baton, for each hand-over", polled, pushed)
	}
	t := r.Table(text("10 waiters, each holds for 200 ms", "10 个等待者，各持有 200 ms"), text("commands sent for each hand-over", "每次移交发送的命令数"), text("commands within scripts", "脚本内部的命令数"))
	t.Add(text("SET NX every 50 ms", "每 50 ms 一次 SET NX"), fmt.Sprintf("%.1f", polled), 0)
	t.Add("Baton", fmt.Sprintf("%.1f", pushed), fmt.Sprintf("%.1f", within))
	r.Chart(&lab.Chart{X: text("commands sent for each hand-over", "每次移交发送的命令数"), Bars: []lab.ChartBar{
		{Name: text("polling every 50 ms", "每 50 ms 轮询"), Value: polled, Shown: lab.Plain(fmt.Sprintf("%.1f", polled)), Bad: true},
		{Name: text("told (Baton)", "收到通知（Baton）"), Value: pushed, Shown: lab.Plain(fmt.Sprintf("%.1f", pushed))},
	}})
	r.Say("With ten waiters a hand-over cost %.1f commands with polling, and more the longer a holder works. With Baton it cost %.1f, the signs of life of those who wait included.",
		"十个等待者时，轮询每次移交要 %.1f 条命令，持有者工作越久就越多。Baton 只要 %.1f 条，其中已包括等待者的续期。", polled, pushed)
	return nil
}

func oneWaiterPerProcess(ctx context.Context, r *lab.Run) error {
	const goroutines = 1000
	server := startRedis(r)
	within, stop := context.WithCancel(ctx)
	defer stop()

	// Each by itself: it tries, and tries again half a second later.
	if _, err := server.Do("SET", "naive", "another program"); err != nil {
		return err
	}
	before, err := commands(server)
	if err != nil {
		return err
	}
	var trying sync.WaitGroup
	for range goroutines {
		trying.Go(func() {
			for within.Err() == nil {
				_, _ = server.Do("SET", "naive", "x", "NX")
				_ = wait(within, 500*time.Millisecond)
			}
		})
	}
	if err := wait(ctx, 2*time.Second); err != nil {
		return err
	}
	after, err := commands(server)
	if err != nil {
		return err
	}
	stop()
	trying.Wait()
	each := after - before

	// Baton: another program holds, and 1000 goroutines of this one wait.
	other, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{})
	if err != nil {
		return err
	}
	lease, err := other.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	waits := make(chan bool, goroutines)
	locks, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{Events: &baton.Events{
		Waiting: func(context.Context, baton.LockEvent) { waits <- true },
	}})
	if err != nil {
		return err
	}
	if before, err = commands(server, sent...); err != nil {
		return err
	}
	served := make(chan error, goroutines)
	for range goroutines {
		go func() { served <- locks.Do(ctx, "order/42", func(context.Context, *baton.Lease) error { return nil }) }()
	}
	for range goroutines {
		select {
		case <-waits:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := wait(ctx, 2*time.Second); err != nil {
		return err
	}
	if after, err = commands(server, sent...); err != nil {
		return err
	}
	together := after - before
	info, err := other.Inspect(ctx, "order/42")
	if err != nil {
		return err
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	for range goroutines {
		if err := <-served; err != nil {
			return err
		}
	}
	if len(info.Waiters) != 1 || together*2 > each {
		return unexpected("the store has %d waiters; %d commands, and %d of goroutines by themselves", len(info.Waiters), together, each)
	}
	t := r.Table(text("1000 goroutines, two seconds", "1000 个 goroutine，两秒"), text("waiters in the store", "存储里的等待者"), text("commands", "命令数"))
	t.Add(text("each tries every 500 ms", "各自每 500 ms 试一次"), goroutines, each)
	t.Add("Baton", len(info.Waiters), together)
	r.Chart(&lab.Chart{X: text("commands in two seconds of waiting", "等待两秒期间的命令数"), Bars: []lab.ChartBar{
		{Name: text("each by itself", "各自去抢"), Value: float64(each), Shown: lab.Plain(each), Bad: true},
		{Name: text("one for all (Baton)", "一个代表全部（Baton）"), Value: float64(together), Shown: lab.Plain(together)},
	}})
	r.Say("Each by itself sent %d commands in two seconds. With Baton the store knew %d waiter, and waiter and holder sent %d commands.",
		"各自去抢时，两秒里发了 %d 条命令。用 Baton 时，存储只看到 %d 个等待者，等待者和持有者一共发了 %d 条命令。", each, len(info.Waiters), together)
	return nil
}
