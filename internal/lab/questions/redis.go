package questions

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/lab"
	"github.com/batonhq/baton/internal/testserver"
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
			text("Baton does so; after a crash the lock is free within its TTL.", "Baton 就是这样做的；崩溃之后，锁最迟在 TTL 内释放。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "drivertest/exclusion.go", Line: `name: "expiry frees the lock",`}},
		Run:    setnxExpire,
	},
	{
		Name:  "delete-without-compare",
		Topic: lab.OneServer,
		Ask:   text("Why must a release compare the value before DEL?", "释放锁时，为什么 DEL 之前要先比较 value？"),
		Answer: [3]lab.Text{
			text("A holder that was too slow has lost its lock; its DEL deletes the lock of the next holder.", "动作太慢的持有者已经丢了锁；它的 DEL 删掉的是下一个持有者的锁。"),
			text("Then a third caller gets the lock while the second works: two at once.", "于是第三个调用者拿到锁，而第二个还在工作：同时有两个。"),
			text("A release compares and deletes in one script; the value is different for each acquisition.", "释放必须在一个脚本里先比较再删除；每次加锁的 value 都不同。"),
		},
		Needs:  []lab.Server{lab.Redis},
		Proofs: []lab.Proof{{File: "drivertest/exclusion.go", Line: `name: "a stale release touches nobody",`}},
		Run:    deleteWithoutCompare,
	},
	{
		Name:  "failover",
		Topic: lab.OneServer,
		Ask:   text("Redis fails over: can two clients hold the same lock?", "Redis 主从切换时，两个客户端会同时持有同一把锁吗？"),
		Answer: [3]lab.Text{
			text("Yes: replication is asynchronous, so the primary can die after it granted the lock and before its replica heard of it.", "会：复制是异步的，主节点授予锁之后、副本得知之前就可能宕机。"),
			text("The replica is promoted, does not know the lock, and grants it again; no client on Redis can prevent that, Baton included.", "副本被提升为主节点，并不知道这把锁，于是再次授予；任何 Redis 客户端都无法避免，Baton 也不例外。"),
			text("Baton's tokens rise all the same, so a resource that checks the token refuses the late write.", "但 Baton 的栅栏令牌仍然递增，检查令牌的资源会拒绝迟到的写入。"),
		},
		Needs: []lab.Server{lab.Redis},
		Proofs: []lab.Proof{
			{File: "store/redisstore/faults_test.go", Line: "func TestFailoverLosesTheLockAndRaisesTokens(t *testing.T) {"},
			{File: "guard/redis_test.go", Line: "func TestRedisInterleaved(t *testing.T) {"},
		},
		Run: failover,
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
	if taken != "0" || left != "-1" || free > ttl+500*time.Millisecond {
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

	// A's release as it should be deletes nothing; as it is often written, B's lock.
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
	locks, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	others, _, err := lockerAt(ctx, r, url, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	primary, replica := r.Lane(text("primary", "主节点")), r.Lane(text("replica", "副本"))
	laneA, laneB := r.Lane(text("A", "A")), r.Lane(text("B", "B"))
	bare, guarded := r.Lane(text("stock, no token", "库存，不查令牌")), r.Lane(text("stock, with guard", "库存，带 guard"))
	r.Start()

	// What the primary sends to its replica is lost from now on, as when it dies with it unsent.
	primary.Begin(lab.Works, text("primary", "主节点"))
	replica.Begin(lab.Works, text("replica", "副本"))
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
	if err := wait(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	set.Primary.Kill()
	died := r.Since()
	primary.Mark(lab.Crashed, text("before the replica heard of A", "副本还不知道 A"))
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
	laneB.Begin(lab.Holds, lab.Text{})
	laneB.Mark(lab.Harm, text("granted, while A holds", "A 还持有时又获得"))
	laneA.Begin(lab.Wrong, lab.Text{})
	believes := a.Err() == nil

	// B writes, and then A. One resource takes what comes, the other asks the guard.
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
	t.Add("Baton", lab.Textf("granted, token %d", "获得，令牌 %d", a.Token()), lab.Textf("granted, token %d", "获得，令牌 %d", b.Token()))
	t = r.Table(text("the stock", "库存"), text("late write of A", "A 迟到的写入"), text("value afterwards", "之后的值"))
	t.Add(text("without a token", "不查令牌"), text("accepted", "接受"), bareHas)
	t.Add(text("with the guard", "带 guard"), text("refused", "拒绝"), guardedHas)
	if !naiveA || !naiveB || !believes || b.Token() <= a.Token() || bareHas != "from A" || guardedHas != "from B" || !errors.Is(refused, guard.ErrStale) || !errors.Is(lost, baton.ErrLost) {
		return unexpected("SET: %v, %v; Baton: A %d (believes: %v), B %d; the stock: %q, %q; the guard: %v; A's renewal: %v",
			naiveA, naiveB, a.Token(), believes, b.Token(), bareHas, guardedHas, refused, lost)
	}
	r.Say("B got the lock of A %d ms after the primary died, although the TTL of A was 60 s. The token of B is the higher one: the guard refused the late write of A, and the stock without a guard lost the write of B.",
		"A 的 TTL 是 60 s，但主节点宕机 %d ms 之后 B 就拿到了 A 的锁。B 的令牌更大：guard 拒绝了 A 迟到的写入；没有 guard 的库存丢掉了 B 的写入。", after.Milliseconds())
	return nil
}

// granted is what a table says of a lock that was asked for.
func granted(yes bool) lab.Text {
	if yes {
		return text("granted", "获得")
	}
	return text("refused", "被拒绝")
}
