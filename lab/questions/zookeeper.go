package questions

import (
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

// herd lets waiters, each with its own session, hand a lock on in four ways, and counts.
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
			// Each waiter that wakes asks at least once, and at least one waiter must wake.
			if way == "before" && (wakes != 1 || requests > 5) || way != "before" && (wakes < int64(n) || requests < wakes) {
				return unexpected("%d waiters that watch %s: %d requests and %d wakes", n, way, requests, wakes)
			}
		}
		if n > 300 { // each waiter of Baton is a complete client here
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

// batonHandsOn does the same with Baton, with a Locker and a session for each waiter. All
// waiters also send a sign of life twice a second. So of five hand-overs the one with the
// fewest requests counts.
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

// handOn queues one node for each session, and releases the first. It returns the cost:
// requests, and sessions that wake.
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

	// From each session that looked: whether it holds now.
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
