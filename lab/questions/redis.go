package questions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

// redis are the questions about a lock on one Redis server.
var redis = []*lab.Question{
	{
		Name:  "setnx-expire",
		Topic: lab.OneServer,
		Ask:   text("SETNX, then EXPIRE: what happens if the program crashes between the two?", "先 SETNX 再 EXPIRE：两条命令之间崩溃会怎样？"),
		Answer: [3]lab.Text{
			text("The lock has no expiry yet, and so it stays for ever: a deadlock that a person has to find.", "锁还没有过期时间，于是永远留在那里：死锁，只能靠人来清理。"),
			text("One command sets value and expiry together: SET key value NX PX ttl.", "用一条命令同时写入值和过期时间：SET key value NX PX ttl。"),
			text("Baton on Redis does so; after a crash the lock is free within its TTL.", "Baton 在 Redis 上就是这样做的；崩溃之后，锁最迟在一个 TTL 内释放。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"drivertest: expiry frees the lock"},
		Run:   setnxExpire,
	},
	{
		Name:  "delete-without-compare",
		Topic: lab.OneServer,
		Ask:   text("Why must a release compare the value before DEL?", "释放锁时，为什么 DEL 之前要先比较 value？"),
		Answer: [3]lab.Text{
			text("A holder that was too slow has lost its lock; its DEL deletes the lock of the next holder.", "动作太慢的持有者已经丢了锁；它的 DEL 删掉的是下一个持有者的锁。"),
			text("Then a third caller gets the lock while the second works: two at once.", "于是第三个调用者拿到锁，而第二个还在工作：同时有两个。"),
			text("A release compares and deletes in one script: between GET and DEL of a program the lock can expire and be granted to another. The value is different for each acquisition.", "释放必须在一个脚本里先比较再删除：在程序里先 GET 再 DEL，中间锁可能过期并授予别人。每次加锁的 value 都不同。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"drivertest: a stale release touches nobody"},
		Run:   deleteWithoutCompare,
	},
	{
		Name:  "failover",
		Topic: lab.OneServer,
		Ask:   text("Redis fails over: can two clients hold the same lock?", "Redis 主从切换时，两个客户端会同时持有同一把锁吗？"),
		Answer: [3]lab.Text{
			text("Yes: replication is asynchronous, so the primary can die after it granted the lock and before its replica heard of it.", "会：复制是异步的，主节点授予锁之后、从节点得知之前就可能宕机。"),
			text("The replica is promoted, does not know the lock, and grants it again; WAIT alone makes that rarer. Baton prevents it with replicas=all in the URL.", "从节点被提升为主节点，并不知道这把锁，于是再次授予；单靠 WAIT 只能降低概率；在 URL 里加上 replicas=all，Baton 就能避免。"),
			text("Baton's tokens rise all the same if the clocks of the servers agree and only one primary grants, so a resource that checks the token refuses the late write.", "只要各服务器时钟一致，而且没有脑裂（同一时刻只有一个主节点在授予锁），Baton 的栅栏令牌仍然递增，检查令牌的资源会拒绝迟到的写入。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"store/redisstore: TestFailoverLosesTheLockAndRaisesTokens",
			"guard: TestRedisInterleaved",
		},
		Run: failover,
	},
	{
		Name:  "lost-answer",
		Topic: lab.OneServer,
		Ask:   text("SET NX was done, but its answer was lost: what does a client do that tries again?", "SET NX 已执行，但响应丢了：客户端重试会怎样？"),
		Answer: [3]lab.Text{
			text("It is refused by its own lock, and waits until that expires.", "它被自己的锁挡住，只能等到锁过期。"),
			text("It cannot tell its lock from that of another, unless it looks at the value and the value says who asked.", "它分不清是自己的锁还是别人的锁，除非 value 说明是谁加的，而且它去看了。"),
			text("Each acquisition of Baton has an ID: asked again with the same ID, the store answers that it is granted. On ZooKeeper the name of the node has the ID, as with Curator.", "Baton 的每次获取都有 ID：用同一个 ID 再问，存储会响应“已经授予”。在 ZooKeeper 上，节点名里带着这个 ID，与 Curator 一样。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"store/zkstore: TestLostAnswersLeaveNothing",
			"drivertest: a repeated acquire finds its grant",
			"baton: TestLostAnswerToAcquire",
		},
		Run: lostAnswer,
	},
	{
		Name:  "client-clock",
		Topic: lab.OneServer,
		Ask:   text("SETNX with the expiry by the client's clock as value: what if a clock is ahead?", "value 存客户端时钟算出的过期时间（SETNX+GETSET），时钟快了会怎样？"),
		Answer: [3]lab.Text{
			text("A client whose clock is ahead takes a lock that is held: to it the lock has expired.", "时钟快的客户端会抢走别人正持有的锁：在它看来锁已过期。"),
			text("One whose clock is behind waits longer for a dead holder, by as much as its clock is behind.", "持有者崩溃后，时钟慢的客户端要多等一段时间：慢多少，就多等多少。"),
			text("A client may only say how long: the server that keeps the lock counts by its own clock, with SET PX and with Baton on every server.", "客户端只能说“多长时间”，由保存锁的服务器按自己的时钟计时：SET PX 如此，Baton 在每种服务器上也如此。"),
		},
		Needs: []lab.Server{lab.Redis, lab.Faketime},
		Tests: []string{"drivertest: a grant stands for its whole TTL"},
		Run:   clientClock,
	},
}

func setnxExpire(ctx context.Context, r *lab.Run) error {
	const ttl = 1500 * time.Millisecond
	server := startRedis(r)
	locks, crash, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	others, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	naiveA := r.Lane(text("SETNX, EXPIRE: A", "SETNX+EXPIRE：A"))
	naiveB := r.Lane(text("SETNX, EXPIRE: B", "SETNX+EXPIRE：B"))
	batonA := r.Lane(text("Baton: A", "Baton：A"))
	batonB := r.Lane(text("Baton: B", "Baton：B"))
	r.Start()

	// A has sent SETNX, and crashes before EXPIRE.
	if _, err := server.Do("SETNX", "naive", "A"); err != nil {
		return err
	}
	naiveA.Begin(lab.Holds, lab.Text{})
	if _, err := locks.Lock(ctx, "order/42"); err != nil {
		return err
	}
	batonA.Begin(lab.Holds, lab.Text{})
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	crash()
	crashed := r.Since()
	naiveA.Mark(lab.Crashed, text("A crashes before EXPIRE", "A 在 EXPIRE 之前崩溃"))
	naiveA.End()
	batonA.Mark(lab.Crashed, text("A crashes", "A 崩溃"))
	batonA.End()

	naiveB.Begin(lab.Waits, lab.Text{})
	batonB.Begin(lab.Waits, lab.Text{})
	lease, err := others.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	free := r.Since() - crashed
	batonB.Begin(lab.Holds, lab.Text{})
	batonB.Mark(lab.Granted, text("the lease of A has ended: B is granted", "A 的租约到期：B 获得锁"))
	if err := wait(ctx, ttl); err != nil {
		return err
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	batonB.Mark(lab.Released, lab.Text{})
	batonB.End()
	if err := wait(ctx, ttl); err != nil {
		return err
	}
	left, err := server.Do("PTTL", "naive")
	if err != nil {
		return err
	}
	taken, err := server.Do("SETNX", "naive", "B")
	if err != nil {
		return err
	}
	naiveB.Mark(lab.Harm, text("B still waits: the lock has no expiry", "B 还在等：锁没有过期时间"))

	t := r.Table(text("way", "方式"), text("PTTL of the lock after the crash", "崩溃后锁的 PTTL"), text("free after", "多久后可用"))
	t.Add("SETNX, EXPIRE", left, text("never", "永远不"))
	t.Add("SET NX PX (Baton)", text("at most 1500 ms", "最多 1500 ms"), free.Round(10*time.Millisecond))
	if taken != "0" || left != "-1" || free < ttl/2 || free > ttl+time.Second { // earlier: another client released it
		return unexpected("SETNX answered %s, PTTL %s, and B had to wait %v", taken, left, free)
	}
	r.Say("After the crash the key of SETNX has a PTTL of -1: it never expires. B got Baton's lock %d ms after the crash of A, whose TTL was 1500 ms.",
		"崩溃之后，SETNX 的键 PTTL 为 -1：永不过期。Baton 的锁 TTL 为 1500 ms，A 崩溃 %[1]d ms 之后 B 就获得了锁。", free.Milliseconds())
	return nil
}

func deleteWithoutCompare(ctx context.Context, r *lab.Run) error {
	const ttl = 800 * time.Millisecond
	server := startRedis(r)
	a, b, c := r.Lane(text("A (slow)", "A（慢）")), r.Lane(text("B", "B")), r.Lane(text("C", "C"))
	r.Start()
	set := func(value string) (bool, error) { return setNX(server, "stock", value, ttl) }
	if ok, err := set("A"); err != nil || !ok {
		return unexpected("A: %v, %v", ok, err)
	}
	a.Begin(lab.Holds, lab.Text{})
	if err := wait(ctx, ttl+50*time.Millisecond); err != nil { // A is slow, and its lock expires
		return err
	}
	if ok, err := set("B"); err != nil || !ok {
		return unexpected("B: %v, %v", ok, err)
	}
	a.Begin(lab.Wrong, lab.Text{})
	b.Begin(lab.Holds, lab.Text{})
	b.Mark(lab.Granted, text("the lock of A has expired", "A 的锁已过期"))
	if err := wait(ctx, 250*time.Millisecond); err != nil {
		return err
	}

	// The correct release of A deletes nothing; the release that is often written deletes
	// B's lock.
	right, err := server.Do("EVAL", compareAndDelete, "1", "stock", "A")
	if err != nil {
		return err
	}
	wrong, err := server.Do("DEL", "stock")
	if err != nil {
		return err
	}
	a.Mark(lab.Harm, text("DEL: it was the lock of B", "DEL：删掉了 B 的锁"))
	a.End()
	if ok, err := set("C"); err != nil || !ok {
		return unexpected("C: %v, %v", ok, err)
	}
	b.Begin(lab.Wrong, lab.Text{})
	c.Begin(lab.Holds, lab.Text{})
	c.Mark(lab.Harm, text("C works beside B", "C 与 B 同时工作"))
	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}
	t := r.Table(text("release by A, which is late", "迟到的 A 释放锁"), text("locks deleted", "删掉的锁"), text("afterwards", "之后"))
	t.Add(text("compare, then delete, in one script", "一个脚本里先比较再删除"), right, text("B holds, alone", "只有 B 持有"))
	t.Add("DEL", wrong, text("B and C work at the same time", "B 和 C 同时工作"))
	if right != "0" || wrong != "1" {
		return unexpected("the script deleted %s, DEL %s", right, wrong)
	}
	r.Say("The script deleted %s locks, because the value was not that of A. DEL deleted %s: that of B.", "脚本删掉了 %s 把锁，因为 value 不是 A 的。DEL 删掉了 %s 把：B 的那一把。", right, wrong)
	return nil
}

func failover(ctx context.Context, r *lab.Run) error {
	const ttl = time.Minute
	var proxies []*faultproxy.Proxy
	set := testserver.RedisSentinelBehind(r.Site, func(addr string) string {
		p := faultproxy.New(r.Site, addr)
		proxies = append(proxies, p)
		return p.Addr
	})
	resource := startRedis(r) // keeps what the lock protects
	url := fmt.Sprintf("redis+sentinel://%s/%s", set.Sentinel.Addr, set.Name)
	locks, _, err := lockerAt(ctx, r, url+"?replicas=0", baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	others, _, err := lockerAt(ctx, r, url+"?replicas=0", baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	safe, _, err := lockerAt(ctx, r, url+"?replicas=all", baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	primary, replica := r.Lane(text("primary", "主节点")), r.Lane(text("replica", "从节点"))
	laneA, laneB := r.Lane(text("A", "A")), r.Lane(text("B", "B"))
	bare, guarded := r.Lane(text("stock, no token", "库存，不查令牌")), r.Lane(text("stock, with guard", "库存，带守卫"))
	r.Start()

	// From now on the primary's messages to its replica are lost, as if it died before it sent
	// them.
	primary.Begin(lab.Works, text("primary", "主节点"))
	replica.Begin(lab.Works, text("replica", "从节点"))
	for _, p := range proxies {
		p.SwallowOf(func(first []byte) bool { return bytes.HasPrefix(first, []byte("*1\r\n$4\r\nPING")) })
	}
	naiveA, err := setNX(set.Primary, "naive", "A", ttl)
	if err != nil {
		return err
	}
	a, err := locks.Lock(ctx, "stock")
	if err != nil {
		return err
	}
	laneA.Begin(lab.Holds, lab.Text{})
	laneA.Mark(lab.Granted, text("by the primary", "主节点授予"))
	refusedSafe := refuses(ctx, safe, "safe")
	set.Primary.Kill()
	died := r.Since()
	primary.Mark(lab.Crashed, text("before the replica heard of A", "从节点还不知道 A"))
	primary.Begin(lab.Down, lab.Text{})
	laneB.Begin(lab.Waits, lab.Text{})
	set.AwaitFailover(r.Site)
	replica.Begin(lab.Works, text("primary", "主节点"))
	replica.Mark(lab.Noted, text("promoted by Sentinel", "被 Sentinel 提升"))

	naiveB, err := setNX(set.Replica, "naive", "B", ttl)
	if err != nil {
		return err
	}
	b, err := others.Lock(ctx, "stock")
	if err != nil {
		return err
	}
	after := r.Since() - died
	safeB, err := lockWhenPossible(ctx, safe, "safe")
	if err != nil {
		return err
	}
	laneB.Begin(lab.Holds, lab.Text{})
	laneB.Mark(lab.Harm, text("granted, while A holds", "A 还持有时又获得"))
	laneA.Begin(lab.Wrong, lab.Text{})
	believes := a.Err() == nil

	// B writes, and then A. One resource accepts every write; the other asks the guard.
	late := guardOn(resource)
	if _, err := resource.Do("SET", "bare", "from B"); err != nil {
		return err
	}
	if _, err := late.Do(ctx, "guarded", guard.Of(b), "SET", "from B"); err != nil {
		return err
	}
	bare.Mark(lab.Accepted, text("B", "B"))
	guarded.Mark(lab.Accepted, text("B", "B"))
	if err := wait(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	if _, err := resource.Do("SET", "bare", "from A"); err != nil {
		return err
	}
	_, refused := late.Do(ctx, "guarded", guard.Of(a), "SET", "from A")
	bare.Mark(lab.Harm, text("A overwrites B", "A 覆盖了 B"))
	guarded.Mark(lab.Rejected, text("A: its token is lower", "A：令牌较小"))
	_, lost := a.Extend(ctx)
	laneA.Mark(lab.Told, text("renewal: lost", "续期：已丢锁"))
	laneA.End()
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}

	bareHas, err := resource.Do("GET", "bare")
	if err != nil {
		return err
	}
	guardedHas, err := resource.Do("GET", "guarded")
	if err != nil {
		return err
	}
	t := r.Table(text("way", "方式"), text("A asks the old primary", "A 向旧主节点加锁"), text("B asks the new one", "B 向新主节点加锁"))
	t.Add("SET NX PX", granted(naiveA), granted(naiveB))
	t.Add("Baton, replicas=0", lab.Textf("granted, token %d", "获得，令牌 %d", a.Token()), lab.Textf("granted, token %d", "获得，令牌 %d", b.Token()))
	t.Add("Baton, replicas=all", text("refused: the replica does not have it", "拒绝：从节点上没有"), lab.Textf("granted, token %d", "获得，令牌 %d", safeB.Token()))
	t = r.Table(text("the stock", "库存"), text("late write of A", "A 迟到的写入"), text("value afterwards", "之后的值"))
	t.Add(text("without a token", "不查令牌"), text("accepted", "接受"), bareHas)
	t.Add(text("with the guard", "带守卫"), text("refused", "拒绝"), guardedHas)
	if !refusedSafe {
		return unexpected("with replicas=all A was granted the lock that no replica has")
	}
	if !naiveA || !naiveB || !believes || b.Token() <= a.Token() || bareHas != "from A" || guardedHas != "from B" || !errors.Is(refused, guard.ErrStale) || !errors.Is(lost, baton.ErrLost) {
		return unexpected("SET: %v, %v; Baton: A %d (believes: %v), B %d; the stock: %q, %q; the guard: %v; A's renewal: %v",
			naiveA, naiveB, a.Token(), believes, b.Token(), bareHas, guardedHas, refused, lost)
	}
	r.Say("B got the lock of A %d ms after the primary died, although the TTL of A was 60 s. The token of B is the higher one: the guard refused the late write of A, and the stock without a guard lost the write of B. With replicas=all A did not get the lock, because the replica did not have it.",
		"A 的 TTL 是 60 s，但主节点宕机 %d ms 之后 B 就拿到了 A 的锁。B 的令牌更大：守卫拒绝了 A 迟到的写入；没有守卫的库存丢掉了 B 的写入。用 replicas=all 时 A 没有拿到锁，因为从节点上没有它。", after.Milliseconds())
	return nil
}

func lostAnswer(ctx context.Context, r *lab.Run) error {
	const ttl = 1500 * time.Millisecond
	server := startRedis(r)
	wire := faultproxy.New(r.Site, server.Addr)
	behind := &testserver.RedisServer{Addr: wire.Addr} // the same server, through the wire
	var refusedOfBaton atomic.Int64
	locks, _, err := lockerAt(ctx, r, "redis://"+wire.Addr, baton.Config{TTL: ttl, Events: &baton.Events{
		Waiting: func(context.Context, baton.LockEvent) { refusedOfBaton.Add(1) },
	}})
	if err != nil {
		return err
	}
	naive, byBaton := r.Lane(text("SET NX PX", "SET NX PX")), r.Lane(text("Baton", "Baton"))
	r.Start()

	// The wire lets the request pass and loses the answer.
	lost := wire.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("order/42")) })
	byBaton.Begin(lab.Waits, lab.Text{})
	asked := r.Since()
	lease, err := locks.Lock(ctx, "order/42")
	if err != nil {
		return err
	}
	waitedOfBaton := r.Since() - asked
	<-lost
	byBaton.Begin(lab.Holds, lab.Text{})
	byBaton.Mark(lab.Granted, text("asked again with the same ID", "用同一个 ID 再问一次"))
	lost = wire.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("naive")) })
	naive.Begin(lab.Waits, lab.Text{})
	asked = r.Since()
	_, broken := setNX(behind, "naive", "A", ttl)
	<-lost
	naive.Mark(lab.Noted, text("the answer is lost", "响应丢失"))
	owner, err := server.Do("GET", "naive")
	if err != nil {
		return err
	}
	refused := 0
	err = takeByHand(ctx, func() (bool, error) {
		taken, err := setNX(behind, "naive", "A", ttl)
		if !taken {
			refused++
		}
		return taken, err
	})
	if err != nil {
		return err
	}
	waited := r.Since() - asked
	naive.Begin(lab.Holds, lab.Text{})
	naive.Mark(lab.Harm, text("waited for its own lock", "等的是自己的锁"))

	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}
	if err := lease.Unlock(); err != nil {
		return err
	}
	t := r.Table(text("the answer to the first request is lost", "第一次请求的响应丢失"), text("refused afterwards", "之后被拒绝"), text("the lock after", "多久后拿到锁"))
	t.Add("SET NX PX 1500", lab.Textf("%d times", "%d 次", refused), lab.Textf("%d ms", "%d ms", waited.Milliseconds()))
	t.Add("Baton", lab.Textf("%d times", "%d 次", refusedOfBaton.Load()), lab.Textf("%d ms", "%d ms", waitedOfBaton.Milliseconds()))
	if broken == nil || owner != "A" || refused == 0 || refusedOfBaton.Load() != 0 || waitedOfBaton >= ttl/2 || waited <= ttl/2 {
		return unexpected("the first SET: %v; GET %q; refused %d and %d times; the lock after %v and %v", broken, owner, refused, refusedOfBaton.Load(), waited, waitedOfBaton)
	}
	r.Say("The server had the lock of A from the first request on, and refused A %d times: A had it after %d ms, when it had expired. Baton had its lock after %d ms.",
		"服务器从第一次请求起就有 A 的锁，却拒绝了 A %d 次：%d ms 之后锁过期，A 才拿到。Baton %d ms 之后就拿到了锁。", refused, waited.Milliseconds(), waitedOfBaton.Milliseconds())
	return nil
}

func clientClock(ctx context.Context, r *lab.Run) error {
	const holds, off = 3 * time.Second, 5 * time.Second
	server := startRedis(r)
	clocks := []time.Duration{0, off, -off} // of the waiting client, from the right time
	naiveA, naiveB := r.Lane(text("GETSET: A", "GETSET：A")), r.Lane(text("GETSET: B, clock +5 s", "GETSET：B，时钟快 5 s"))
	batonA, batonB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B, clock +5 s", "Baton：B，时钟快 5 s"))

	// Baton's process has the clock of this machine, so the server's clock is changed
	// instead: a client is ahead of a server that is behind.
	var servers []*testserver.RedisServer
	var leases []*baton.Lease
	var others []*baton.Locker
	for _, clock := range clocks {
		c := testserver.NewClock(r.Site)
		c.Set(-clock)
		s := c.Redis()
		locks, _, err := lockerAt(ctx, r, "redis://"+s.Addr, baton.Config{TTL: holds})
		if err != nil {
			return err
		}
		other, _, err := lockerAt(ctx, r, "redis://"+s.Addr, baton.Config{TTL: holds})
		if err != nil {
			return err
		}
		lease, err := locks.Lock(ctx, "order/42")
		if err != nil {
			return err
		}
		servers, leases, others = append(servers, s), append(leases, lease), append(others, other)
	}
	r.Start()

	// remaining is how long a client waits, by its own clock, for the expiry in the value.
	now := func(offset time.Duration) int64 { return time.Now().Add(offset).UnixMilli() }
	remaining := func(value string, offset time.Duration) (time.Duration, error) {
		expiry, err := strconv.ParseInt(value, 10, 64)
		return time.Duration(expiry-now(offset)) * time.Millisecond, err
	}
	of := func(offset time.Duration) string { return strconv.FormatInt(now(offset)+holds.Milliseconds(), 10) }
	if taken, err := server.Do("SETNX", "naive", of(0)); err != nil || taken != "1" {
		return unexpected("SETNX: %s, %v", taken, err)
	}
	naiveA.Begin(lab.Holds, lab.Text{})
	batonA.Begin(lab.Holds, lab.Text{})
	naiveB.Begin(lab.Waits, lab.Text{})
	batonB.Begin(lab.Waits, lab.Text{})
	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}
	value, err := server.Do("GET", "naive")
	if err != nil {
		return err
	}
	var naive [3]time.Duration
	t := r.Table(text("clock of the client that waits", "等待者的时钟"), text("by it, the lock of A ends in", "按它的时钟，A 的锁还剩"),
		text("Baton: B", "Baton：B"), text("Baton: PTTL of the lock of A", "Baton：A 的锁的 PTTL"))
	for i, name := range []lab.Text{text("right", "准"), text("5 s ahead", "快 5 s"), text("5 s behind", "慢 5 s")} {
		if naive[i], err = remaining(value, clocks[i]); err != nil {
			return err
		}
		_, refused := others[i].TryLock(ctx, "order/42")
		left, err := servers[i].Do("PTTL", "order/42")
		if err != nil {
			return err
		}
		ms, err := strconv.ParseInt(left, 10, 64)
		if err != nil || !errors.Is(refused, baton.ErrHeld) || ms <= 0 || ms > holds.Milliseconds() {
			return unexpected("the clock %v from right: B got %v, PTTL %q", clocks[i], refused, left)
		}
		shown := lab.Textf("%d ms", "%d ms", naive[i].Milliseconds())
		if naive[i] < 0 {
			shown = lab.Textf("%d ms: it has expired", "%d ms：已过期", naive[i].Milliseconds())
		}
		t.Add(name, shown, granted(false), lab.Textf("%d ms", "%d ms", ms))
	}
	batonB.Mark(lab.Rejected, text("the server's clock counts", "以服务器的时钟为准"))

	// By B's clock it has expired. B takes it, because the old value is the one that it saw.
	before, err := server.Do("GETSET", "naive", of(off))
	if err != nil {
		return err
	}
	naiveA.Begin(lab.Wrong, lab.Text{})
	naiveB.Begin(lab.Holds, lab.Text{})
	naiveB.Mark(lab.Harm, text("takes the lock that A holds", "抢走 A 持有的锁"))
	if err := wait(ctx, 800*time.Millisecond); err != nil {
		return err
	}
	batonB.End()
	for _, lease := range leases {
		if err := lease.Unlock(); err != nil {
			return err
		}
	}
	batonA.Mark(lab.Released, lab.Text{})
	batonA.End()
	if right, early, late := naive[0], naive[1], naive[2]; before != value || early >= 0 || right <= 0 || late <= holds {
		return unexpected("GET %q, GETSET %q; %v, %v and %v remain", value, before, right, early, late)
	}
	r.Say("A had the lock for another %d ms. To B, whose clock is 5 s ahead, it had ended %d ms before, and GETSET gave it to B. Baton refused B whether the clocks of the clients were right, ahead of the server's or behind it.",
		"A 的锁还剩 %d ms。B 的时钟快 5 s，在它看来锁在 %d ms 之前就过期了，GETSET 把锁给了 B。不论客户端的时钟比服务器准、快还是慢，Baton 都拒绝了 B。", naive[0].Milliseconds(), -naive[1].Milliseconds())
	return nil
}
