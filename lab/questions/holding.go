package questions

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

// holding are the questions about what a holder can rely on.
var holding = []*lab.Question{
	{
		Name:  "pause",
		Topic: lab.Holding,
		Ask:   text("The holder is paused (GC, SIGSTOP) until its lock has expired. Then it writes?", "持有者停顿（GC、SIGSTOP）到锁过期才醒来，它的写入会怎样？"),
		Answer: [3]lab.Text{
			text("It writes: it looked at its lock before the pause, and that says nothing about afterwards.", "照样写入：它在停顿之前检查过锁，而这说明不了停顿之后的事。"),
			text("So a lock with an expiry alone does not protect the data, whichever store keeps it.", "所以只靠会过期的锁保护不了数据，用什么存储都一样。"),
			text("The resource must check: Baton's token rises with each grant, and the guard refuses a lower one.", "必须由资源来检查：Baton 的栅栏令牌每次授予都递增，守卫拒绝较小的令牌。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"guard: TestRedisInterleaved",
			"drivertest: tokens rise through expiry",
		},
		Run: pause,
	},
	{
		Name:  "told-in-time",
		Topic: lab.Holding,
		Ask:   text("The holder is cut off from the store: does it learn in time that it lost the lock?", "持有者与存储之间断网：它能及时知道自己丢了锁吗？"),
		Answer: [3]lab.Text{
			text("A holder that only called SET never learns it, and works on beside the next holder.", "只执行过 SET 的持有者永远不会知道，会与下一个持有者同时工作。"),
			text("It needs no message: it knows when its last successful renewal was sent, and how long that lasts; of a session of ZooKeeper, half of its time-out at most.", "不需要谁来通知：它知道最后一次成功的续期是何时发出的、能维持多久；对 ZooKeeper 的会话，最多算超时的一半。"),
			text("Baton ends the lease by a margin before its TTL has passed in the store; until then the store grants the lock to nobody else, unless it loses data or its clock jumps.", "Baton 会留出余量，在存储里的 TTL 到期之前就结束租约；在那之前，只要存储不丢数据、时钟不跳变，锁就不会授予别人。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"baton: TestSilentStoreEndsTheLeaseInTime", "store/zkstore: TestSilentConnection"},
		Run:   toldInTime,
	},
}

func pause(ctx context.Context, r *lab.Run) error {
	const ttl = 1200 * time.Millisecond
	server := startRedis(r)
	url := "redis://" + server.Addr
	others, _, err := lockerAt(ctx, r, url, baton.Config{})
	if err != nil {
		return err
	}
	laneA, laneB := r.Lane(text("A", "A")), r.Lane(text("B", "B"))
	bare, guarded := r.Lane(text("stock, no token", "库存，不查令牌")), r.Lane(text("stock, guard", "库存，守卫"))

	// A is a real process. It prints its token and its process ID, and later that it writes.
	const script = `echo "$BATON_TOKEN $$"; read go; echo write; read end`
	a, err := r.Baton(ctx, "-q", "-b", url, "run", "--ttl", ttl.String(), "stock", "--", "sh", "-c", script)
	if err != nil {
		return err
	}
	in, err := a.StdinPipe()
	if err != nil {
		return err
	}
	out, err := a.StdoutPipe()
	if err != nil {
		return err
	}
	if err := a.Start(); err != nil {
		return err
	}
	said := bufio.NewScanner(out)
	said.Scan()
	var token int64
	var number int
	if _, err := fmt.Sscan(said.Text(), &token, &number); err != nil {
		return unexpected("A said %q: %v", said.Text(), err)
	}
	work, err := os.FindProcess(number)
	if err != nil {
		return err
	}
	r.Start()
	laneA.Begin(lab.Holds, lab.Text{})
	laneA.Mark(lab.Noted, text("A looks: it holds", "A 检查：持有"))
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	if err := errors.Join(testserver.Freeze(a.Process), testserver.Freeze(work)); err != nil {
		return err
	}
	laneA.Begin(lab.Paused, text("SIGSTOP", "SIGSTOP"))
	laneB.Begin(lab.Waits, lab.Text{})
	b, err := others.Lock(ctx, "stock")
	if err != nil {
		return err
	}
	laneB.Begin(lab.Holds, lab.Text{})
	laneB.Mark(lab.Granted, text("the TTL of A has passed", "A 的 TTL 已过"))
	resource := guardOn(server)
	if _, err := server.Do("SET", "bare", "from B"); err != nil {
		return err
	}
	if _, err := resource.Do(ctx, "guarded", guard.Of(b), "SET", "from B"); err != nil {
		return err
	}
	bare.Mark(lab.Accepted, text("B", "B"))
	guarded.Mark(lab.Accepted, text("B", "B"))
	if err := wait(ctx, 400*time.Millisecond); err != nil {
		return err
	}

	// The work continues before any message could report the loss.
	if err := testserver.Thaw(work); err != nil {
		return err
	}
	laneA.Begin(lab.Wrong, lab.Text{})
	if _, err := fmt.Fprintln(in, "go"); err != nil {
		return err
	}
	if said.Scan(); said.Text() != "write" {
		return unexpected("A said %q", said.Text())
	}
	if _, err := server.Do("SET", "bare", "from A"); err != nil {
		return err
	}
	_, refused := resource.Do(ctx, "guarded", guard.Pass{Token: token}, "SET", "from A")
	bare.Mark(lab.Harm, text("A overwrites B", "A 覆盖了 B"))
	guarded.Mark(lab.Rejected, text("A: its token is lower", "A：令牌较小"))
	if err := wait(ctx, 200*time.Millisecond); err != nil {
		return err
	}
	if err := testserver.Thaw(a.Process); err != nil {
		return err
	}
	_ = a.Wait()
	laneA.Mark(lab.Told, text("baton run stops the work", "baton run 停止工作进程"))
	laneA.End()

	bareHas, err1 := server.Do("GET", "bare")
	guardedHas, err2 := server.Do("GET", "guarded")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	t := r.Table(text("the stock", "库存"), text("late write of A", "A 迟到的写入"), text("value afterwards", "之后的值"))
	t.Add(text("without a token", "不查令牌"), text("accepted", "接受"), bareHas)
	t.Add(text("with the guard", "带守卫"), text("refused", "拒绝"), guardedHas)
	const lostLease = 79
	if b.Token() <= token || bareHas != "from A" || guardedHas != "from B" || !errors.Is(refused, guard.ErrStale) || a.ProcessState.ExitCode() != lostLease {
		return unexpected("tokens %d, %d; the stock: %q, %q; the guard: %v; baton run: %v", token, b.Token(), bareHas, guardedHas, refused, a.ProcessState)
	}
	r.Say("A wrote while B held the lock. Without a token the stock is %q; with the guard it is %q. When A's baton was awake again it stopped the work and exited with %d: lease lost.",
		"A 在 B 持有锁的时候写入了。不查令牌的库存是 %q；带守卫的是 %q。A 的 baton 醒来之后停止了工作进程，退出码 %d：租约丢失。", bareHas, guardedHas, lostLease)
	return nil
}

func toldInTime(ctx context.Context, r *lab.Run) error {
	const ttl, margin = 2 * time.Second, 600 * time.Millisecond
	server := startRedis(r)
	wire := faultproxy.New(r.Site, server.Addr)
	locks, _, err := lockerAt(ctx, r, "redis://"+wire.Addr, baton.Config{TTL: ttl, Margin: margin})
	if err != nil {
		return err
	}
	others, _, err := lockerAt(ctx, r, "redis://"+server.Addr, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	naiveA, naiveB := r.Lane(text("SET NX PX: A", "SET NX PX：A")), r.Lane(text("SET NX PX: B", "SET NX PX：B"))
	laneA, laneB := r.Lane(text("Baton: A", "Baton：A")), r.Lane(text("Baton: B", "Baton：B"))
	r.Start()
	if _, err := setNX(server, "naive", "A", ttl); err != nil {
		return err
	}
	a, err := locks.Lock(ctx, "renewed")
	if err != nil {
		return err
	}
	naiveA.Begin(lab.Holds, lab.Text{})
	laneA.Begin(lab.Holds, lab.Text{})
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	wire.Swallow(faultproxy.ToServer)
	wire.Swallow(faultproxy.ToClient)
	naiveA.Mark(lab.Noted, text("A is cut off", "A 断网"))
	laneA.Mark(lab.Noted, text("A is cut off", "A 断网"))
	told := make(chan time.Duration, 1)
	go func() {
		<-a.Done()
		told <- r.Since()
		laneA.Mark(lab.Told, text("A is told", "A 得知丢锁"))
		laneA.End()
	}()

	naiveB.Begin(lab.Waits, lab.Text{})
	laneB.Begin(lab.Waits, lab.Text{})
	b, err := others.Lock(ctx, "renewed")
	if err != nil {
		return err
	}
	granted := r.Since()
	lost := a.Err()
	laneB.Begin(lab.Holds, lab.Text{})
	laneB.Mark(lab.Granted, text("the TTL of A has passed", "A 的 TTL 已过"))
	if err := takeByHand(ctx, func() (bool, error) { return setNX(server, "naive", "B", ttl) }); err != nil {
		return err
	}
	naiveB.Begin(lab.Holds, lab.Text{})
	naiveA.Begin(lab.Wrong, lab.Text{})
	naiveA.Mark(lab.Harm, text("nobody tells A", "没有人通知 A"))
	if err := wait(ctx, 600*time.Millisecond); err != nil {
		return err
	}
	if err := b.Unlock(); err != nil {
		return err
	}
	before := granted - <-told
	t := r.Table(text("holder that is cut off", "断网的持有者"), text("learns of the loss", "何时得知丢锁"))
	t.Add("SET NX PX", text("never", "永远不会"))
	t.Add("Baton", lab.Textf("%d ms before B is granted the lock", "B 获得锁之前 %d ms", before.Milliseconds()))
	if !errors.Is(lost, baton.ErrLost) || before <= 0 {
		return unexpected("A was told %v before B was granted the lock: %v", before, lost)
	}
	r.Say("Baton told A of the loss %d ms before the store granted the lock to B. TTL 2 s, margin 600 ms. The other A worked beside B and knew nothing.",
		"存储把锁授予 B 之前 %d ms，Baton 就让 A 得知了丢锁（TTL 2 s，余量 600 ms）。另一个 A 与 B 同时工作，一无所知。", before.Milliseconds())
	return nil
}
