// Command campaign runs "baton verify" over all stores and faults, keeps what it
// found in docs/verification.jsonl, and writes docs/verification.md from that. It
// may be ended at any time, and goes on where it was.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/goredis"
	"github.com/batonhq/baton/verify"
	"github.com/batonhq/baton/verify/deploy"
	"github.com/batonhq/baton/verify/fault"
	"github.com/batonhq/baton/verify/lines"
	"github.com/batonhq/baton/verify/results"
)

func main() {
	verify.GoRedis = func(addr string) (wrap func(redisstore.Config) (*redisstore.Store, error), end func() error) {
		c := redis.NewClient(&redis.Options{Addr: addr})
		return func(cfg redisstore.Config) (*redisstore.Store, error) { return goredis.New(c, cfg) }, c.Close
	}
	verify.Main()
	log.SetFlags(log.Ltime)
	c := campaign{}
	flag.StringVar(&c.results, "results", "docs/verification.jsonl", "where results are kept")
	flag.StringVar(&c.page, "page", "docs/verification.md", "the page to write")
	flag.DurationVar(&c.budget, "budget", 2*time.Hour, "begin nothing new after so long")
	flag.DurationVar(&c.length, "for", 6*time.Second, "how long the clients work under each fault")
	flag.Uint64Var(&c.seeds, "seeds", 10, "how many runs each cell is to have")
	flag.IntVar(&c.parallel, "parallel", 1, "how many stores at the same time")
	kinds := flag.String("kinds", "", "only these, with commas between them")
	faults := flag.String("faults", "", "only these, with commas between them")
	render := flag.Bool("render", false, "only write the page")
	flag.Parse()
	c.kinds, c.faults = list(*kinds), list(*faults)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
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
	budget, length time.Duration
	seeds          uint64
	parallel       int
	kinds, faults  []string

	mu sync.Mutex // of the file of results
}

// A job is what one kind of store still lacks for one seed.
type job struct {
	kind   string
	seed   uint64
	faults []string
}

// missing lists what is still to be run, the first seed of all stores first, so
// that whatever the time the table is even. What was invalid is tried again.
func (c *campaign) missing(known map[results.Place]results.Result) (jobs []job) {
	for seed := range c.seeds {
		for _, k := range deploy.Kinds {
			if c.kinds != nil && !slices.Contains(c.kinds, k.Name) {
				continue
			}
			j := job{kind: k.Name, seed: seed + 1}
			for _, f := range fault.All() {
				claim, claimed := fault.Expect(k.Name, f.ID)
				r, done := known[results.Place{Kind: k.Name, Fault: f.ID, Seed: j.seed}]
				switch {
				case c.faults != nil && !slices.Contains(c.faults, f.ID):
				case !claimed || claim.E == fault.NoSuch || fault.WhyLeft(k.Name, f.ID) != "":
				case done && r.Verdict != verify.Invalid:
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

func (c *campaign) run(ctx context.Context) error {
	known, err := results.Load(c.results)
	if err != nil {
		return err
	}
	jobs := c.missing(known)
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

// tolerated is more than the default, since several stores share the machine. It
// is still less than what waiters are owed beside the TTL.
const tolerated = time.Second

// runs splits a job: faults that leave the servers alone share a deployment, each
// of the others has one of its own, and so has one that wants a longer TTL.
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

// do runs a job. What is done when it ends early is kept.
func (c *campaign) do(ctx context.Context, j job, end time.Time) error {
	for _, faults := range j.runs() {
		if ctx.Err() != nil || time.Now().After(end) {
			return nil
		}
		// What broke a claim once in a thousand runs does not come again for the asking.
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
			x := results.Of(j.kind, j.seed, t)
			found = append(found, x)
			if t.Verdict != verify.Held {
				log.Printf("%s %s seed %d: %s %v %v, busy %.2f", j.kind, t.Fault, j.seed, t.Verdict, x.Broke, x.Why, t.Busy)
			}
		}
		c.mu.Lock()
		err = lines.Add(c.results, found...)
		c.mu.Unlock()
		if err != nil {
			return err
		}
	}
	return nil
}

// write tidies the results and writes the page.
func (c *campaign) write() error {
	if err := results.Tidy(c.results); err != nil {
		return err
	}
	all, err := results.Load(c.results)
	if err != nil {
		return err
	}
	text, err := page(results.Sorted(all))
	if err != nil {
		return err
	}
	return os.WriteFile(c.page, []byte(text), 0o644)
}
