package batonasynq_test

import (
	"flag"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hibiken/asynq"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/internal/queuetest"
	"github.com/batonhq/baton/internal/testserver"
)

var soak = flag.Int("soak", 0, "how many tasks TestFleet runs in 10 workers, with kills all the time, until the last one has run")

// Workers of many processes, some of which are killed, never run more than the cap of
// each key, and burn no attempt for what they put back.
func TestFleet(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	workers, keys, tasks, kills := 3, 5, 800, 1
	if *soak > 0 {
		workers, keys, tasks, kills = 10, 10, *soak, 1<<30
	}
	addr := testserver.Redis(t).Addr
	client := redis.NewClient(&redis.Options{Addr: addr})
	defer client.Close()
	queue := asynq.NewClient(asynq.RedisClientOpt{Addr: addr})
	defer queue.Close()
	for i := range tasks {
		if _, err := queue.Enqueue(asynq.NewTask("job", fmt.Appendf(nil, "key%d", i%keys)), asynq.MaxRetry(5)); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	var all []*testserver.Worker
	for range workers {
		all = append(all, testserver.StartWorker(t, "worker", addr))
	}

	// The journal is read as it grows.
	var read, killed int64
	ledger := queuetest.NewLedger(t, running)
	atMost := 4 * time.Minute
	if *soak > 0 {
		atMost = 3 * time.Hour
	}
	nextKill := tasks / 3
	lastKill := time.Now()
	for {
		lines, err := client.LRange(t.Context(), journal, read, read+9999).Result()
		if err != nil {
			t.Fatal(err)
		}
		read += int64(len(lines))
		for _, line := range lines {
			f := strings.Fields(line)
			what, key, pid := f[0], f[1], f[3]
			id, retried := strings.CutSuffix(f[2], "/retried")
			switch what {
			case "begin":
				ledger.Begin(id, key, pid, retried)
			case "end":
				ledger.End(id)
			case "killed":
				ledger.Killed(pid)
			}
		}
		done := len(ledger.Done)
		if done >= tasks || *soak == 0 && done+int(killed)*10 >= tasks && ledger.Running() == 0 {
			break // what a killed worker ran comes again after a minute: the soak waits for it
		}
		if time.Since(began) > atMost {
			t.Fatalf("%d of %d tasks have run after %s", done, tasks, atMost)
		}
		if done >= nextKill && int(killed) < kills && (*soak == 0 || time.Since(lastKill) > 5*time.Second) {
			victim := int(killed) % len(all)
			kill(t, all[victim], client)
			all[victim] = testserver.StartWorker(t, "worker", addr)
			killed++
			lastKill = time.Now()
		}
		if len(lines) == 0 {
			time.Sleep(20 * time.Millisecond) // a poll; the deadline is above
		}
	}
	took := time.Since(began)
	for _, p := range all {
		p.Stop()
	}
	// A worker that is killed has up to ten tasks, some of which wait: the queue counts an
	// attempt of each. No other task may lose one.
	if n := len(ledger.Lost) + len(ledger.Cut); n > 10*int(killed) {
		t.Errorf("%d tasks lost an attempt, and %d workers with ten each were killed", n, killed)
	}
	ledger.Bound()
	inspector := asynq.NewInspector(asynq.RedisClientOpt{Addr: addr})
	defer inspector.Close()
	info, err := inspector.GetQueueInfo("default")
	if err != nil {
		t.Fatal(err)
	}
	if info.Archived > 0 {
		t.Errorf("%d tasks were archived", info.Archived)
	}
	t.Logf("%d tasks of %d keys in %d workers, %d kills, %d cut short: %s, at most %d of a key at a time, %d more lost an attempt, %d ran more than once",
		len(ledger.Done), keys, workers, killed, len(ledger.Cut), took.Round(time.Second/10), ledger.Most, len(ledger.Lost), ledger.Again)
}
