package questions

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

// split are the questions about two primaries at once.
var split = []*lab.Question{
	{
		Name:  "split-brain",
		Topic: lab.OneServer,
		Ask:   text("Redis split brain: the old primary is cut off and lives on. What do WAIT and min-replicas-to-write change?", "Redis 脑裂：旧主节点被隔离却还活着，WAIT 和 min-replicas-to-write 有什么用？"),
		Answer: [3]lab.Text{
			text("Two primaries grant the same lock, one to each side; what the old one acknowledged since the cut is gone when it follows the new one.", "两个主节点各自把同一把锁授予一边；隔离之后旧主节点确认过的写入，等它跟随新主节点就全部丢失。"),
			text("WAIT 1 says that no replica has the lock, and the lock stays there all the same. With min-replicas-to-write 1 and min-replicas-max-lag the old primary refuses all writes, but only after that lag: until then it grants.", "WAIT 1 会告诉你没有从节点收到这把锁，但锁仍然留在旧主节点上。min-replicas-to-write 1 配合 min-replicas-max-lag，旧主节点会拒绝所有写入，但要等超过这个延迟；在那之前它照样授予。"),
			text("Fencing refuses the late write of the older grant. It is no help against what the old primary grants after the new one: that token is the higher one, and only min-replicas-to-write, or waiting for replicas (replicas=1), prevents it.", "栅栏令牌会拒绝先授予者迟到的写入。但旧主节点在新主节点之后再授予的锁，令牌反而更大，栅栏挡不住，只有 min-replicas-to-write，或者等待从节点确认（replicas=1），才能防止。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"store/redisstore: TestExamineReplication",
			"guard: TestRedisInterleaved",
		},
		Run: splitBrain,
	},
}

// A pair is a primary and its replica, which is promoted while the primary is cut off from
// it.
type pair struct {
	name          lab.Text
	old, replica  *testserver.RedisServer
	wire          *faultproxy.Proxy
	atOld         *baton.Locker // of A and C, which are cut off together with the primary
	laneOld       *lab.Lane
	laneA, laneB  *lab.Lane
	a, b, c       *baton.Lease
	granted, told time.Duration // on the timeline: B is granted the lock; A is told of its loss, or never
	refusedA      error         // by the guard
	refusedC      error         // by the old primary
	locks         taken         // by SET NX PX at the old primary
}

// taken counts the locks that were taken at the old primary after the cut, one after another.
type taken struct {
	acknowledged []string // keys
	last         time.Duration
	others       int           // not acknowledged
	first        chan struct{} // closed at the first acknowledgement
	lost         int           // of the acknowledged ones, when the old primary follows the new one
	err          error
}

// take takes locks until the context ends.
func (t *taken) take(ctx context.Context, r *lab.Run, prefix string, take func(key string) (acknowledged bool, err error)) {
	for n := 0; ctx.Err() == nil; n++ {
		key := fmt.Sprintf("%s/%d", prefix, n)
		acknowledged, err := take(key)
		switch {
		case err != nil:
			t.err = err
			return
		case acknowledged:
			t.acknowledged, t.last = append(t.acknowledged, key), r.Since()
		default:
			if t.others++; t.others == 1 {
				close(t.first)
			}
		}
		_ = wait(ctx, 50*time.Millisecond)
	}
}

// look counts the acknowledged locks that a server lacks.
func (t *taken) look(server *testserver.RedisServer) error {
	for _, key := range t.acknowledged {
		there, err := server.Do("EXISTS", key)
		if err != nil {
			return err
		}
		if there == "0" {
			t.lost++
		}
	}
	return nil
}

// accepting turns the error of a primary with too few replicas into a refusal.
func accepting(err error) (bool, error) {
	if err != nil && strings.Contains(err.Error(), "NOREPLICAS") {
		return false, nil
	}
	return err == nil, err
}

// accepted is a table's cell for the answer to a write.
func accepted(err error) lab.Text {
	if err == nil {
		return text("accepted", "接受")
	}
	return text("refused", "拒绝")
}

func startPair(ctx context.Context, r *lab.Run, name lab.Text, ttl time.Duration, args ...string) (*pair, error) {
	p := &pair{name: name, old: startRedis(r, args...), locks: taken{first: make(chan struct{})}}
	p.wire = faultproxy.New(r.Site, p.old.Addr)
	p.replica = testserver.RedisReplica(r.Site, &testserver.RedisServer{Addr: p.wire.Addr})
	for _, lane := range []struct {
		lane **lab.Lane
		name lab.Text
	}{
		{&p.laneOld, text("old primary", "旧主节点")},
		{&p.laneA, text("A", "A")},
		{&p.laneB, text("B", "B")},
	} {
		*lane.lane = r.Lane(lab.Text{EN: name.EN + ": " + lane.name.EN, ZH: name.ZH + "：" + lane.name.ZH})
	}
	// The primary accepts writes from the first acknowledgement of its replica on.
	err := takeByHand(ctx, func() (bool, error) {
		_, err := p.old.Do("SET", "ready", "1")
		return accepting(err)
	})
	if err != nil {
		return nil, err
	}
	p.atOld, _, err = lockerAt(ctx, r, "redis://"+p.old.Addr, baton.Config{TTL: ttl})
	return p, err
}

// setAndWait is SET NX PX and then WAIT 1 on one connection: how many replicas have it.
func setAndWait(ctx context.Context, server *testserver.RedisServer, key string, patience time.Duration) (set string, replicas string, err error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", server.Addr)
	if err != nil {
		return "", "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := fmt.Fprintf(conn, "SET %s A NX PX 60000\r\nWAIT 1 %d\r\n", key, patience.Milliseconds()); err != nil {
		return "", "", err
	}
	answers := bufio.NewScanner(conn)
	answers.Scan()
	set = answers.Text()
	answers.Scan()
	return set, answers.Text(), answers.Err()
}

func splitBrain(ctx context.Context, r *lab.Run) error {
	const (
		until = time.Second // the fail-over
		ttl   = time.Second
	)
	async, err := startPair(ctx, r, text("default", "默认"), ttl)
	if err != nil {
		return err
	}
	stock := r.Lane(text("default: stock, guard", "默认：库存，守卫"))
	safer, err := startPair(ctx, r, lab.Plain("min-replicas"), ttl, "--min-replicas-to-write", "1", "--min-replicas-max-lag", "1")
	if err != nil {
		return err
	}
	pairs := []*pair{async, safer}
	resource := startRedis(r)
	write := func(p *pair, l *baton.Lease) error {
		_, err := guardOn(resource).Do(ctx, p.name.EN, guard.Of(l), "SET", "x")
		return err
	}
	// A replica acknowledges once a second, and at once when WAIT asks it.
	_, before, err := setAndWait(ctx, async.old, "before", 5*time.Second)
	if err != nil {
		return err
	}
	if _, _, err := setAndWait(ctx, safer.old, "before", 5*time.Second); err != nil {
		return err
	}

	r.Start()
	for _, p := range pairs {
		p.wire.Swallow(faultproxy.ToServer)
		p.wire.Swallow(faultproxy.ToClient)
		p.laneOld.Begin(lab.Works, text("cut off, grants", "被隔离，仍在授予"))
	}
	for _, p := range pairs {
		if p.a, err = p.atOld.Lock(ctx, "stock"); err != nil {
			return err
		}
		p.laneA.Begin(lab.Holds, lab.Text{})
		p.laneB.Begin(lab.Waits, lab.Text{})
	}

	strict, _, err := lockerAt(ctx, r, "redis://"+async.old.Addr+"?replicas=1", baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	if !refuses(ctx, strict, "strict") {
		return unexpected("replicas=1: the old primary grants what no replica has")
	}

	// Clients beside the old primary continue to take locks.
	writing, stop := context.WithCancel(ctx)
	var clients sync.WaitGroup
	defer clients.Wait()
	defer stop()
	for _, p := range pairs {
		clients.Go(func() {
			p.locks.take(writing, r, "set", func(key string) (bool, error) {
				_, err := setNX(p.old, key, "A", time.Minute)
				return accepting(err)
			})
		})
	}
	waited := taken{first: make(chan struct{})}
	clients.Go(func() {
		waited.take(writing, r, "waited", func(key string) (bool, error) {
			set, replicas, err := setAndWait(ctx, async.old, key, 50*time.Millisecond)
			if err == nil && set != "+OK" {
				err = unexpected("SET before WAIT: %q", set)
			}
			return replicas != ":0", err
		})
	})

	// The failover, as Sentinel makes it.
	if err := wait(ctx, until); err != nil {
		return err
	}
	for _, p := range pairs {
		if _, err := p.replica.Do("REPLICAOF", "NO", "ONE"); err != nil {
			return err
		}
		others, _, err := lockerAt(ctx, r, "redis://"+p.replica.Addr, baton.Config{TTL: ttl})
		if err != nil {
			return err
		}
		if p.b, err = others.Lock(ctx, "stock"); err != nil {
			return err
		}
		p.granted = r.Since()
		p.laneB.Begin(lab.Holds, lab.Text{})
		p.laneB.Mark(lab.Harm, text("granted by the new primary", "新主节点授予"))
		p.laneA.Begin(lab.Wrong, lab.Text{})
		if err := write(p, p.b); err != nil {
			return err
		}
	}
	stock.Mark(lab.Accepted, text("B", "B"))
	known, err := setNX(async.replica, "before", "B", time.Minute)
	if err != nil {
		return err
	}

	// The primary with min-replicas-to-write stops granting and renewing.
	select {
	case <-safer.locks.first:
		safer.laneOld.Mark(lab.Rejected, text("NOREPLICAS", "NOREPLICAS"))
		safer.laneOld.End()
	case <-time.After(10 * time.Second):
		return unexpected("the old primary did not refuse with min-replicas-to-write 1")
	}
	select {
	case <-safer.a.Done():
		safer.told = r.Since()
		safer.laneA.Mark(lab.Told, text("not renewed", "无法续期"))
		safer.laneA.End()
	case <-time.After(5 * time.Second):
		return unexpected("the old primary refuses writes, and A was not told")
	}
	if err := wait(ctx, ttl); err != nil { // the other pair continues
		return err
	}
	believes := async.a.Err() == nil
	for _, p := range pairs {
		p.refusedA = write(p, p.a)
	}
	stock.Mark(lab.Rejected, text("A: older", "A：令牌较小"))
	if err := async.a.Unlock(); err != nil {
		return err
	}
	async.laneA.End()
	overlap := r.Since() - async.granted
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	for _, p := range pairs {
		p.c, p.refusedC = p.atOld.TryLock(ctx, "stock")
	}
	if async.refusedC != nil {
		return unexpected("C at the old primary: %v", async.refusedC)
	}
	async.laneOld.Mark(lab.Harm, text("grants to C", "又授予 C"))
	writeOfC := write(async, async.c)
	refusedB := write(async, async.b)
	stock.Mark(lab.Harm, text("C: newer", "C：令牌更大"))
	stop()
	clients.Wait()
	if err := errors.Join(async.locks.err, safer.locks.err, waited.err); err != nil {
		return err
	}
	again, err := setNX(async.old, "waited/0", "D", time.Minute)
	if err != nil {
		return err
	}

	// The cut ends: the old primary follows the new one, on Sentinel's command.
	for _, p := range pairs {
		host, port, _ := net.SplitHostPort(p.replica.Addr)
		if _, err := p.old.Do("REPLICAOF", host, port); err != nil {
			return err
		}
		p.laneOld.End()
	}
	for _, p := range pairs {
		err := takeByHand(ctx, func() (bool, error) {
			info, err := p.old.Do("INFO", "replication")
			return strings.Contains(info, "master_link_status:up"), err
		})
		if err != nil {
			return err
		}
		if err := p.locks.look(p.old); err != nil {
			return err
		}
		p.laneB.End()
		if err := p.b.Unlock(); err != nil {
			return err
		}
	}

	if err := waited.look(async.old); err != nil {
		return err
	}

	t := r.Table(text("locks at the old primary after the cut", "隔离之后在旧主节点加锁"), text("acknowledged", "确认"), text("not acknowledged", "未确认"), text("acknowledged, and lost", "确认了却丢失"))
	t.Add("SET NX PX", len(async.locks.acknowledged), async.locks.others, async.locks.lost)
	t.Add("SET NX PX, WAIT 1", len(waited.acknowledged), lab.Textf("%d: WAIT says 0", "%d：WAIT 返回 0", waited.others), waited.lost)
	t.Add("SET NX PX, min-replicas-to-write 1", lab.Textf("%d, the last after %d ms", "%d，最后一个在 %d ms", len(safer.locks.acknowledged), safer.locks.last.Milliseconds()),
		lab.Textf("%d: NOREPLICAS", "%d：NOREPLICAS", safer.locks.others), safer.locks.lost)
	t = r.Table(text("Baton, fail-over after 1 s", "Baton，1 s 后主从切换"), text("A and B hold at once", "A、B 同时持有"), text("late write of A, by the guard", "A 迟到的写入，守卫"), text("C asks the old primary after that", "此后 C 向旧主节点加锁"))
	both := max(0, safer.told-safer.granted)
	t.Add(async.name, lab.Textf("%d ms, until A unlocks", "%d ms，直到 A 解锁", overlap.Milliseconds()), accepted(async.refusedA), text("granted, and its token is above that of B", "获得，令牌比 B 的大"))
	t.Add(safer.name, lab.Textf("%d ms, until A is told", "%d ms，直到 A 得知丢锁", both.Milliseconds()), accepted(safer.refusedA), granted(safer.refusedC == nil))

	t.Add("replicas=1", text("never: A gets no lock", "从不：A 拿不到锁"), text("none", "没有"), text("refused", "拒绝"))

	n, k := len(async.locks.acknowledged), len(safer.locks.acknowledged)
	switch {
	case before != ":1" || known:
		return unexpected("before the cut WAIT said %s, and then the new primary granted that lock to B: %v", before, known)
	case n == 0 || async.locks.others > 0 || async.locks.lost != n:
		return unexpected("by default: %d acknowledged, %d refused, %d lost", n, async.locks.others, async.locks.lost)
	case len(waited.acknowledged) > 0 || waited.others == 0 || again:
		return unexpected("WAIT: %d confirmed, %d not; the old primary granted such a lock again: %v", len(waited.acknowledged), waited.others, again)
	case k == 0 || safer.locks.others == 0 || safer.locks.last > 6*time.Second || safer.locks.lost != k:
		return unexpected("min-replicas-to-write: %d acknowledged, the last after %v, %d refused, %d lost", k, safer.locks.last, safer.locks.others, safer.locks.lost)
	case !believes || !errors.Is(async.refusedA, guard.ErrStale) || async.b.Token() <= async.a.Token():
		return unexpected("by default: A believed %v; tokens %d, %d; the guard: %v", believes, async.a.Token(), async.b.Token(), async.refusedA)
	case writeOfC != nil || !errors.Is(refusedB, guard.ErrStale) || async.c.Token() <= async.b.Token():
		return unexpected("C, granted by the old primary after B: tokens %d, %d; the guard: C %v, B %v", async.c.Token(), async.b.Token(), writeOfC, refusedB)
	case !errors.Is(safer.a.Err(), baton.ErrLost) || !errors.Is(safer.refusedA, guard.ErrStale) || !errors.Is(safer.refusedC, baton.ErrUnavailable) || safer.told > safer.locks.last+ttl+time.Second:
		return unexpected("min-replicas-to-write: A %v, the guard %v, C %v; A was told after %v, the last lock after %v", safer.a.Err(), safer.refusedA, safer.refusedC, safer.told, safer.locks.last)
	}
	r.Say("The cut-off primary acknowledged %d locks and lost them all. With WAIT 1 none of %d counted as locked; one taken before the cut, for which WAIT said 1, was refused by the new primary, too. With min-replicas-to-write 1 and min-replicas-max-lag 1 it acknowledged %d, until %d ms after the cut, and then refused.",
		"被隔离的主节点确认了 %d 把锁，全部丢失。用 WAIT 1，%d 把锁没有一把算加锁成功；隔离之前加的、WAIT 返回 1 的那把锁，新主节点也拒绝再次授予。min-replicas-to-write 1 加 min-replicas-max-lag 1 时确认了 %d 把，到隔离之后 %d ms 为止，此后一律拒绝。",
		n, waited.others, k, safer.locks.last.Milliseconds())
	r.Say("The guard refused A in both cases. By default the old primary granted the lock to C after B: the guard accepted C, whose token is higher, and from then on refused B. A fail-over that begins later than the refusals finds no second primary that grants.",
		"两种情况下守卫都拒绝了 A。默认配置下，旧主节点在 B 之后又把锁授予 C：C 的令牌更大，守卫接受了它，此后反而拒绝 B。如果主从切换晚于旧主节点开始拒绝的时刻，就不会有第二个还在授予的主节点。")
	return nil
}
