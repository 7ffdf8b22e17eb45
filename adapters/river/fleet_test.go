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

	"github.com/batonhq/baton/internal/testserver"
)

var soak = flag.Int("soak", 0, "how many jobs TestFleet runs in 10 workers, with kills all the time, until the last one has run")

type event struct {
	ID   int64
	What string
	Key  *string
	Job  *int64
	Lost *bool // the job has lost an attempt
	PID  int64
}

// readJournal returns what was added after a number. An insert has the lock of the table
// before it has a number, so that no lower number can follow later.
func readJournal(ctx context.Context, pool *pgxpool.Pool, after int64) (events []event, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "lock table journal in share mode"); err != nil {
			return err
		}
		rows, err := tx.Query(ctx, "select id, what, key, job, lost, pid from journal where id > $1 order by id limit 10000", after)
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
	var read, killed, ran, again int64
	type run struct {
		key string
		pid int64
	}
	runs := map[int64]run{}  // now
	now := map[string]int{}  // jobs of each key that run
	done := map[int64]bool{} // once at least
	cut := map[int64]bool{}  // in a process that was killed
	lost := map[int64]bool{} // an attempt, though it had not begun
	var dead []string        // workers that were killed, as River calls them
	most, atMost := 0, 4*time.Minute
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
				if *e.Lost && !cut[*e.Job] {
					lost[*e.Job] = true
				}
				if _, twice := runs[*e.Job]; twice {
					t.Errorf("job %d runs twice", *e.Job)
				}
				runs[*e.Job] = run{*e.Key, e.PID}
				now[*e.Key]++
				most = max(most, now[*e.Key])
				if now[*e.Key] > running {
					t.Fatalf("%d jobs of %s run", now[*e.Key], *e.Key)
				}
			case "end":
				if _, runs := runs[*e.Job]; !runs {
					t.Fatalf("job %d ended and had not begun", *e.Job)
				}
				delete(runs, *e.Job)
				now[*e.Key]--
				if done[*e.Job] {
					again++
				}
				done[*e.Job] = true
				ran++
			case "killed":
				for id, r := range runs {
					if r.pid == e.PID {
						cut[id] = true
						delete(runs, id)
						now[r.key]--
					}
				}
			}
		}
		if len(done) >= jobs {
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
			t.Fatalf("%d of %d jobs have run after %s", len(done), jobs, atMost)
		}
		if len(done) >= jobs/3 && int(killed) < kills && (*soak == 0 || time.Since(lastKill) > 5*time.Second) {
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
	if most < running {
		t.Errorf("at most %d jobs of a key ran at a time: the test shows nothing about the cap of %d", most, running)
	}
	var discarded int
	var snoozes float64
	if err := pool.QueryRow(t.Context(), "select count(*) filter (where state in ('discarded', 'cancelled')), avg(coalesce((metadata->>'snoozes')::int, 0)) from river_job").Scan(&discarded, &snoozes); err != nil {
		t.Fatal(err)
	}
	if discarded > 0 {
		t.Errorf("%d jobs were discarded", discarded)
	}
	t.Logf("%d jobs of %d keys in %d workers, %d kills, %d cut short: %s, at most %d of a key at a time, %d more lost an attempt, %d ran more than once, %.1f snoozes for each",
		len(done), keys, workers, killed, len(cut), took.Round(time.Second/10), most, len(lost), again, snoozes)
}
