package questions

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
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
			text("It needs no message: it knows when its last successful renewal was sent, and how long that lasts.", "不需要谁来通知：它知道最后一次成功的续期是何时发出的、能维持多久。"),
			text("Baton ends the lease by a margin before its TTL has passed in the store; until then the store grants the lock to nobody else, unless it loses data or its clock jumps.", "Baton 会留出余量，在存储里的 TTL 到期之前就结束租约；在那之前，只要存储不丢数据、时钟不跳变，锁就不会授予别人。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"baton: TestSilentStoreEndsTheLeaseInTime"},
		Run:   toldInTime,
	},
	{
		Name:  "killed",
		Topic: lab.Holding,
		Ask:   text("The holder is killed by kill -9: when is the lock free?", "持有者被 kill -9：锁什么时候释放？"),
		Answer: [3]lab.Text{
			text("When its expiry has passed: no code of the holder runs any more, not even a finally or a defer.", "等过期时间到：持有者的代码一行也不会再执行，finally、defer 也不例外。"),
			text("So a lock that is renewed can have a short TTL, and a lock without renewal must have a long one.", "所以有续期的锁可以用短 TTL；没有续期的锁只能用长 TTL。"),
			text("Baton's agent, a process beside it on the same machine, knows at once, because the kernel closes the connection, and frees the lock.", "Baton 的 agent 是同一台机器上的另一个进程：内核会关闭死掉的进程的连接，agent 立刻得知，马上释放锁。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"drivertest: expiry frees the lock",
			"agent: TestProcessThatIsKilled",
		},
		Run: killed,
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

	// A is a real process. It says its token and its number, and later that it writes.
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

	// The work goes on before anything could tell it of the loss.
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

func killed(ctx context.Context, r *lab.Run) error {
	const ttl = 2 * time.Second
	server := startRedis(r)
	url := "redis://" + server.Addr
	others, _, err := lockerAt(ctx, r, url, baton.Config{})
	if err != nil {
		return err
	}
	socket := filepath.Join(r.Site.FreshDir().Dir(), "agent")
	agent, err := r.Baton(ctx, "-q", "-b", url, "agent", "--socket", socket)
	if err != nil {
		return err
	}
	if err := agent.Start(); err != nil {
		return err
	}
	naiveA, naiveB := r.Lane(text("SET NX PX 30 s: A", "SET NX PX 30 s：A")), r.Lane(text("SET NX PX 30 s: B", "SET NX PX 30 s：B"))
	runA, runB := r.Lane(text("baton run: A", "baton run：A")), r.Lane(text("baton run: B", "baton run：B"))
	agentA, agentB := r.Lane(text("agent: A", "agent：A")), r.Lane(text("agent: B", "agent：B"))

	// Three processes hold a lock each.
	if _, err := setNX(server, "naive", "A", 30*time.Second); err != nil {
		return err
	}
	run, err := r.Baton(ctx, "-q", "-b", url, "run", "--ttl", ttl.String(), "renewed", "--", "sleep", "60")
	if err != nil {
		return err
	}
	if err := run.Start(); err != nil {
		return err
	}
	session, err := sessionOf(ctx, socket, "session")
	if err != nil {
		return err
	}
	for {
		info, err := others.Inspect(ctx, "renewed")
		if err != nil {
			return err
		}
		if len(info.Holders) > 0 {
			break
		}
		if err := wait(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	r.Start()
	for _, l := range []*lab.Lane{naiveA, runA, agentA} {
		l.Begin(lab.Holds, lab.Text{})
	}
	if err := wait(ctx, 500*time.Millisecond); err != nil {
		return err
	}
	if err := errors.Join(run.Process.Kill(), session.Process.Kill()); err != nil {
		return err
	}
	died := r.Since()
	for _, l := range []*lab.Lane{naiveA, runA, agentA} {
		l.Mark(lab.Crashed, lab.Text{})
		l.End()
	}
	for _, l := range []*lab.Lane{naiveB, runB, agentB} {
		l.Begin(lab.Waits, lab.Text{})
	}
	get := func(key string, l *lab.Lane) (after time.Duration, err error) {
		if _, err := others.Lock(ctx, key); err != nil {
			return 0, err
		}
		after = r.Since() - died
		l.Begin(lab.Holds, lab.Text{})
		l.Mark(lab.Granted, lab.Textf("%d ms after the death", "死后 %d ms", after.Milliseconds()))
		return after, nil
	}
	afterAgent, err := get("session", agentB)
	if err != nil {
		return err
	}
	afterRun, err := get("renewed", runB)
	if err != nil {
		return err
	}
	if err := wait(ctx, 300*time.Millisecond); err != nil {
		return err
	}
	left, err := server.Do("PTTL", "naive")
	if err != nil {
		return err
	}
	ms, err := strconv.Atoi(left)
	if err != nil {
		return err
	}
	naiveB.Mark(lab.Harm, lab.Textf("waits %d s more", "还要等 %d s", ms/1000))
	t := r.Table(text("the lock of the dead process", "死掉的进程的锁"), text("free after", "多久后可用"))
	t.Add("SET key value NX PX 30000", lab.Textf("not yet: PTTL %d", "尚未：PTTL %d", ms))
	t.Add(text("baton run --ttl 2s, renewed", "baton run --ttl 2s，续期"), lab.Textf("%d ms", "%d ms", afterRun.Milliseconds()))
	t.Add(text("session of baton agent", "baton agent 的会话"), lab.Textf("%d ms", "%d ms", afterAgent.Milliseconds()))
	if afterAgent >= ttl/2 || afterRun < ttl/2 || afterRun > ttl+time.Second || ms < 20_000 {
		return unexpected("free after %v and %v, and %d ms left", afterAgent, afterRun, ms)
	}
	r.Say("The agent freed the lock %d ms after the process was killed. That of baton run, whose TTL is 2 s, was free after %d ms. SET with PX 30000 still had %d ms to go.",
		"进程被杀死 %d ms 之后 agent 就释放了锁。baton run 的 TTL 是 2 s，%d ms 之后可用。PX 30000 的 SET 还剩 %d ms。", afterAgent.Milliseconds(), afterRun.Milliseconds(), ms)
	return nil
}

// sessionOf starts a process whose connection to the agent has the lock of a key.
func sessionOf(ctx context.Context, socket, key string) (*exec.Cmd, error) {
	var conn net.Conn
	for conn == nil { // until the agent listens
		var err error
		if conn, err = new(net.Dialer).DialContext(ctx, "unix", socket); err != nil {
			if err := wait(ctx, 20*time.Millisecond); err != nil {
				return nil, err
			}
		}
	}
	defer conn.Close()
	if _, err := fmt.Fprintf(conn, `{"id":1,"do":"lock","key":%q}`+"\n", key); err != nil {
		return nil, err
	}
	answers := json.NewDecoder(conn)
	for id := 0; id == 0; { // first it says who it is
		var answer struct {
			ID int
			OK bool
		}
		if err := answers.Decode(&answer); err != nil || !answer.OK {
			return nil, unexpected("the agent: %+v, %v", answer, err)
		}
		id = answer.ID
	}
	file, err := conn.(*net.UnixConn).File()
	if err != nil {
		return nil, err
	}
	defer file.Close()
	cmd := exec.CommandContext(ctx, "sleep", "60")
	cmd.ExtraFiles = []*os.File{file} // from here on only this process has the connection
	return cmd, cmd.Start()
}
