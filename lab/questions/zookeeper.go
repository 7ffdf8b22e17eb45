package questions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

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
	r.Say("With 1000 waiters one hand-over cost %.0f requests if all watch the parent, %.0f if all watch the lowest node, and %.0f if each watches the one before it. Baton needed %.0f with 300 waiters, the least of five hand-overs, as each waiter sends a sign of life twice a second besides.",
		"1000 个等待者时，都监听父节点，每次移交要 %.0f 个请求；都监听最小节点，要 %.0f 个；各自监听前一个节点，只要 %.0f 个。Baton 在 300 个等待者时用了 %.0f 个（五次移交里最少的一次：等待者每秒还各发两次续期）。", last(0), last(1), last(2), last(3))
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

func lostCreate(ctx context.Context, r *lab.Run) error {
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
	unowned := len(queue) - 1
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
	t.Add(text("create again", "再创建一次"), unowned, text("waits until its session ends", "等到自己的会话结束"))
	t.Add(text("name with an ID (protected)", "名字带 ID（protected）"), len(named)-1, text("holds", "持有"))
	t.Add("Baton", left, text("holds", "持有"))
	if unowned != 1 || len(named) != 1 || left != 0 {
		return unexpected("nodes that nobody owns: %d, %d and %d", unowned, len(named)-1, left)
	}
	r.Say("The second create left %d node that nobody owns, and A waited behind it for as long as its session lived. With an ID in the name no node was left.",
		"再创建一次留下了 %d 个无主节点，只要会话还活着，A 就一直排在它后面。名字里带 ID 时，一个也没有留下。", unowned)
	return nil
}
