package questions

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/lab"
)

// waiting are the questions about the order of waiters.
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
		Needs: []lab.Server{lab.ZooKeeper},
		Tests: []string{"store/zkstore: TestCost"},
		Run:   herd,
	},
	{
		Name:  "read-write-order",
		Topic: lab.Waiting,
		Ask:   text("Read-write locks: can readers starve a writer?", "读写锁：读者会不会把写者饿死？"),
		Answer: [3]lab.Text{
			text("Yes, if a reader is let in whenever others read: as long as readers overlap, the writer waits.", "会。如果只要有人在读就放新读者进来，读者一直首尾重叠，写者就一直等。"),
			text("In order of arrival a reader waits for the last writer before it, and a writer for all before it.", "按到达顺序：读者只等它之前的最后一个写者，写者等它之前的所有人。"),
			text("Baton does so on every store but Redlock, which promises no order: readers that stand next to each other hold together, and nobody is overtaken.", "Baton 在每种存储上都是这样（只有 Redlock 不保证顺序）：相邻的读者一起持有，谁也不会被插队。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"drivertest: readers and writers in strict order", "drivertest: readers behind a waiting writer wait"},
		Run:   readWriteOrder,
	},
	{
		Name:  "fair-queue",
		Topic: lab.Waiting,
		Ask:   text("A loop that tries again, or a queue: who gets the lock first?", "循环重试还是排队：谁先拿到锁？"),
		Answer: [3]lab.Text{
			text("With retry loops the caller that happens to try first after a release gets the lock, even if it came last.", "循环重试时，释放之后谁碰巧先试谁就拿到锁，哪怕它是最后来的。"),
			text("So the unlucky wait much longer than the others, and there is no bound; and each waiter sends commands for as long as it waits.", "于是运气差的等得比别人久得多，而且没有上限；每个等待者还要不停地发命令。"),
			text("In a queue the order of grants is the order of arrival; Baton queues in the store, across processes, and promises that order on every store but Redlock.", "排队时，授予的顺序就是到达的顺序；Baton 在存储里排队，跨进程有效，除 Redlock 之外都保证这个顺序。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{"drivertest: first come, first served", "drivertest: nobody barges in after a release", "drivertest: a crashed waiter costs at most 3 s", "store/redisstore: TestHandOverIsTwoCommandsAndOnePush"},
		Run:   fairQueue,
	},
}

func readWriteOrder(ctx context.Context, r *lab.Run) error {
	server := startRedis(r)
	url := "redis://" + server.Addr
	readers, writer := r.Lane(text("readers first: R", "读者优先：读者")), r.Lane(text("readers first: W", "读者优先：写者"))
	order := []string{"R1", "R2", "W1", "R3", "W2"} // in this order they ask
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
		select { // the next caller comes when this one has its position
		case <-waits:
		case <-granted:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}

	// Meanwhile one reader of the naive lock always enters before the other leaves.
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

	// All callers come while the lock is held, one after the other.
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
