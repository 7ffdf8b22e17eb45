package questions

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
)

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
	if pushed > polled/2 {
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
