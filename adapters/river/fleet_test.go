package batonriver_test

import (
	"context"
	"flag"
	"fmt"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"

	"github.com/batonhq/baton/internal/queuetest"
	"github.com/batonhq/baton/internal/testserver"
)

var soak = flag.Int("soak", 0, "how many jobs TestFleet runs in 10 workers, with kills all the time, until the last one has run")

type event struct {
	ID                  int64
	What, Key, Job, PID string
	Lost                bool // the job has lost an attempt
}

// readJournal returns what was added after a number. An insert has the lock of the table
// before it has a number, so that no lower number can follow later.
func readJournal(ctx context.Context, pool *pgxpool.Pool, after int64) (events []event, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "lock table journal in share mode"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "select id, what, coalesce(key, ''), coalesce(job::text, ''), pid::text, coalesce(lost, false) from journal where id > $1 order by id limit 10000", after)
		if err != nil {
			return err
		}
		events, err = pgx.CollectRows(rows, pgx.RowToStructByPos[event])
		return err
	})
	return events, err
}

// Workers of many processes, some of which are killed, never run more than the cap of
// each key, and burn no attempt for what they put back.
func TestFleet(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	workers, keys, jobs, kills := 3, 5, 800, 1
	if *soak > 0 {
		workers, keys, jobs, kills = 10, 10, *soak, 1<<30
	}
	db := migrated(t)
	pool := connect(t, db.url)
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), "create table journal (id bigserial primary key, what text, key text, job bigint, lost bool, pid bigint)"); err != nil {
		t.Fatal(err)
	}
	client, err := newClient(pool, nil, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	var params []river.InsertManyParams
	for i := range jobs {
		if params = append(params, insertion(fmt.Sprint("key", i%keys), 5)); len(params) == 1000 || i == jobs-1 {
			if _, err := client.InsertManyFast(t.Context(), params); err != nil {
				t.Fatal(err)
			}
			params = nil
		}
	}
	began := time.Now()
	var all []*testserver.Worker
	for range workers {
		all = append(all, testserver.StartWorker(t, "worker", db.addr, db.name))
	}

	// The journal is read as it grows.
	var read, killed int64
	ledger := queuetest.NewLedger(t, running)
	var dead []string // workers that were killed, as River calls them
	atMost := 4 * time.Minute
	if *soak > 0 {
		atMost = 3 * time.Hour
	}
	lastKill := time.Now()
	for {
		events, err := readJournal(t.Context(), pool, read)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			read = e.ID
			switch e.What {
			case "begin":
				ledger.Begin(e.Job, e.Key, e.PID, e.Lost)
			case "end":
				ledger.End(e.Job)
			case "killed":
				ledger.Killed(e.PID)
			}
		}
		done := len(ledger.Done)
		if done >= jobs {
			break
		}
		if *soak == 0 && killed > 0 && len(events) == 0 {
			var left int
			err := pool.QueryRow(t.Context(), "select count(*) from river_job where state <> 'completed' and not (state = 'running' and attempted_by[cardinality(attempted_by)] = any($1))", dead).Scan(&left)
			if err != nil {
				t.Fatal(err)
			}
			if left == 0 {
				break // what a killed worker had comes again after RescueStuckJobsAfter: the soak waits for it
			}
		}
		if time.Since(began) > atMost {
			t.Fatalf("%d of %d jobs have run after %s", done, jobs, atMost)
		}
		if done >= jobs/3 && int(killed) < kills && (*soak == 0 || time.Since(lastKill) > 5*time.Second) {
			victim := int(killed) % len(all)
			kill(t, all[victim], pool)
			dead = append(dead, clientID(all[victim].PID()))
			all[victim] = testserver.StartWorker(t, "worker", db.addr, db.name)
			killed++
			lastKill = time.Now()
		}
		if len(events) == 0 {
			time.Sleep(50 * time.Millisecond) // a poll; the deadline is above
		}
	}
	took := time.Since(began)
	for _, p := range all {
		p.Stop()
	}
	// River counts an attempt of what a worker had when it was killed, also of jobs that were
	// complete or went back, if it had not recorded that yet. No other job may lose one.
	var others int
	if err := pool.QueryRow(t.Context(), "select count(*) from river_job where attempt > 1 and not attempted_by && $1", dead).Scan(&others); err != nil {
		t.Fatal(err)
	}
	if others > 0 {
		t.Errorf("%d jobs lost an attempt that no worker had that was killed", others)
	}
	ledger.Bound()
	var discarded int
	var snoozes float64
	if err := pool.QueryRow(t.Context(), "select count(*) filter (where state in ('discarded', 'cancelled')), avg(coalesce((metadata->>'snoozes')::int, 0)) from river_job").Scan(&discarded, &snoozes); err != nil {
		t.Fatal(err)
	}
	if discarded > 0 {
		t.Errorf("%d jobs were discarded", discarded)
	}
	t.Logf("%d jobs of %d keys in %d workers, %d kills, %d cut short: %s, at most %d of a key at a time, %d more lost an attempt, %d ran more than once, %.1f snoozes for each",
		len(ledger.Done), keys, workers, killed, len(ledger.Cut), took.Round(time.Second/10), ledger.Most, len(ledger.Lost), ledger.Again, snoozes)
}
