package questions

import (
	"context"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/lab"
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
	const px = "800"
	a, b, c := r.Lane(text("A (slow)", "A（慢）")), r.Lane(text("B", "B")), r.Lane(text("C", "C"))
	r.Start()
	set := func(value string) (bool, error) {
		answer, err := server.Do("SET", "stock", value, "NX", "PX", px)
		return answer == "OK", err
	}
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
	const compare = `if redis.call("GET", KEYS[1]) == ARGV[1] then return redis.call("DEL", KEYS[1]) end return 0`
	right, err := server.Do("EVAL", compare, "1", "stock", "A")
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
