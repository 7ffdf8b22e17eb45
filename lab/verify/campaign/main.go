// Command campaign runs "baton-lab verify" over all stores and faults. It adds each run to a
// record that git ignores, .verify/verification.jsonl. At its end it adds the record to the
// sums in lab/results/verification.jsonl, one line for each store and fault, and writes
// lab/results/verification.md from those. It may be ended at any time; the next start
// continues from there.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"maps"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/lab/verify"
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/lines"
	"github.com/batonhq/baton/lab/verify/results"
	"github.com/batonhq/baton/store/redisstore"
)

func main() {
	verify.GoRedis = func(addr string) (wrap func(redisstore.Config) (*redisstore.Store, error), end func() error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		return func(cfg redisstore.Config) (*redisstore.Store, error) { return redisstore.New(c, cfg) }, c.Close
	}
	verify.Main()
	log.SetFlags(log.Ltime)
	c := campaign{}
	flag.StringVar(&c.results, "results", "lab/results/verification.jsonl", "where the sums of all runs are kept")
	flag.StringVar(&c.record, "record", ".verify/verification.jsonl", "where each run is kept")
	flag.StringVar(&c.page, "page", "lab/results/verification.md", "the page to write")
	flag.DurationVar(&c.budget, "budget", 2*time.Hour, "begin nothing new after so long")
	flag.DurationVar(&c.length, "for", 6*time.Second, "how long the clients work under each fault")
	flag.Uint64Var(&c.seeds, "seeds", 10, "how many runs each cell is to have")
	flag.IntVar(&c.parallel, "parallel", 1, "how many stores at the same time")
	kinds := flag.String("kinds", "", "only these, with commas between them")
	faults := flag.String("faults", "", "only these, with commas between them")
	anew := flag.Bool("anew", false, "forget what is known of -kinds under -faults, and run it again")
	render := flag.Bool("render", false, "only write the page")
	flag.Parse()
	c.kinds, c.faults = list(*kinds), list(*faults)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *anew {
		if err := c.forget(); err != nil {
			log.Fatal(err)
		}
	}
	if !*render {
		if err := c.run(ctx); err != nil {
			log.Fatal(err)
		}
	}
	if err := c.write(); err != nil {
		log.Fatal(err)
	}
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

type campaign struct {
	results, page  string
	record         string
	budget, length time.Duration
	seeds          uint64
	parallel       int
	kinds, faults  []string
	commit         string // of the code that runs

	mu sync.Mutex // guards the record
}

// A job is the missing faults of one kind of store for one seed.
type job struct {
	kind   string
	seed   uint64
	faults []string
}

// missing lists the runs that are missing, the first seed of all stores first, so that the
// table is even at any time. It includes the repetition of invalid runs.
func (c *campaign) missing(known results.Sums) (jobs []job) {
	for seed := range c.seeds {
		for _, k := range deploy.Kinds {
			j := job{kind: k.Name, seed: seed + 1}
			for _, f := range fault.All() {
				claim, claimed := fault.Expect(k.Name, f.ID)
				switch {
				case !c.wants(k.Name, f.ID):
				case !claimed || claim.E == fault.NoSuch || fault.WhyLeft(k.Name, f.ID) != "":
				case known.Done(k.Name, f.ID, j.seed):
				default:
					j.faults = append(j.faults, f.ID)
				}
			}
			if len(j.faults) > 0 {
				jobs = append(jobs, j)
			}
		}
	}
	return jobs
}

// wants reports whether the campaign includes a kind under a fault.
func (c *campaign) wants(kind, fault string) bool {
	return (c.kinds == nil || slices.Contains(c.kinds, kind)) && (c.faults == nil || slices.Contains(c.faults, fault))
}

// known is the sums with the record. It removes a truncated line from the record.
func (c *campaign) known() (results.Sums, error) {
	sums, err := results.Load(c.results)
	if err != nil {
		return nil, err
	}
	runs, err := lines.Load[results.Result](c.record)
	if err != nil {
		return nil, err
	}
	sums.Add(runs...)
	return sums, lines.Replace(c.record, runs...)
}

// forget removes the runs that must be repeated from the sums and the record.
func (c *campaign) forget() error {
	sums, err := results.Load(c.results)
	if err != nil {
		return err
	}
	runs, err := lines.Load[results.Result](c.record)
	if err != nil {
		return err
	}
	maps.DeleteFunc(sums, func(_ [2]string, s *results.Sum) bool { return c.wants(s.Kind, s.Fault) })
	runs = slices.DeleteFunc(runs, func(r results.Result) bool { return c.wants(r.Kind, r.Fault) })
	if err := lines.Replace(c.record, runs...); err != nil { // first: known adds the record to the sums
		return err
	}
	return sums.Save(c.results)
}

func (c *campaign) run(ctx context.Context) error {
	known, err := c.known()
	if err != nil {
		return err
	}
	jobs := c.missing(known)
	c.commit = lines.Commit()
	end := time.Now().Add(c.budget)
	next := make(chan job)
	var workers sync.WaitGroup
	errs := make([]error, c.parallel)
	for i := range c.parallel {
		workers.Go(func() {
			for j := range next {
				errs[i] = errors.Join(errs[i], c.do(ctx, j, end))
			}
		})
	}
	for i, j := range jobs {
		if ctx.Err() != nil || time.Now().After(end) {
			log.Printf("%d of %d jobs are left for another time", len(jobs)-i, len(jobs))
			break
		}
		log.Printf("job %d of %d: %s, seed %d, %d faults", i+1, len(jobs), j.kind, j.seed, len(j.faults))
		next <- j
	}
	close(next)
	workers.Wait()
	return errors.Join(errs...)
}

// tolerated is the stall that a run may have: more than the default, because several stores
// share the machine, and less than the time beyond the TTL in which waiters must be granted.
const tolerated = time.Second

// runs splits a job. Faults that leave the servers alone share a deployment. Each other fault,
// and each with a longer TTL, has its own.
func (j job) runs() (runs [][]string) {
	var gentle []string
	for _, id := range j.faults {
		if f, err := fault.Find(id); err != nil || fault.OfServers(id) || f.TTL > 0 {
			runs = append(runs, []string{id})
		} else {
			gentle = append(gentle, id)
		}
	}
	if gentle != nil {
		runs = append(runs, gentle)
	}
	return runs
}

// do runs a job. If it ends early, it keeps the finished runs.
func (c *campaign) do(ctx context.Context, j job, end time.Time) error {
	for _, faults := range j.runs() {
		if ctx.Err() != nil || time.Now().After(end) {
			return nil
		}
		// Keep the files: a violation in one of a thousand runs cannot be repeated at will.
		dir, err := os.MkdirTemp("", fmt.Sprintf("baton-%s-%d-", j.kind, j.seed))
		if err != nil {
			return err
		}
		r, err := verify.Run(ctx, verify.Config{Local: j.kind, Faults: faults, Seed: j.seed, For: c.length, Stall: tolerated, Keep: dir}, nil)
		if r == nil || !slices.ContainsFunc(r.Trials, func(t *verify.Trial) bool { return t.Verdict == verify.Broken }) {
			err = errors.Join(err, os.RemoveAll(dir))
		} else {
			log.Printf("%s seed %d: its histories and logs are in %s", j.kind, j.seed, dir)
		}
		if err != nil && ctx.Err() == nil {
			return fmt.Errorf("%s, %v, seed %d: %w", j.kind, faults, j.seed, err)
		}
		if r == nil {
			return nil
		}
		var found []results.Result
		for _, t := range r.Trials {
			x := results.Of(j.kind, j.seed, c.commit, t)
			found = append(found, x)
			if t.Verdict != verify.Held {
				log.Printf("%s %s seed %d: %s %v %v, busy %.2f", j.kind, t.Fault, j.seed, t.Verdict, x.Broke, x.Why, t.Busy)
			}
		}
		c.mu.Lock()
		err = lines.Add(c.record, found...)
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// write adds the record to the sums, and writes the page.
func (c *campaign) write() error {
	all, err := c.known()
	if err != nil {
		return err
	}
	if err := all.Save(c.results); err != nil {
		return err
	}
	text, err := page(all)
	if err != nil {
		return err
	}
	return os.WriteFile(c.page, []byte(text), 0o644)
}
