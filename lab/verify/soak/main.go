// Command soak looks for leaks: it puts a steady, modest load on every kind of store for a while, with
// names that come and go, and checks whether anything grows. It keeps the last result of each kind in
// lab/results/soak.jsonl, one line for each, and writes lab/results/soak.md from that. It needs Linux.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/lines"
)

func main() {
	childMain()
	log.SetFlags(log.Ltime)
	var s soak
	flag.StringVar(&s.results, "results", "lab/results/soak.jsonl", "where results are kept")
	flag.StringVar(&s.page, "page", "lab/results/soak.md", "the page to write")
	flag.StringVar(&s.samples, "samples", "", "a file to which all that is seen is added")
	flag.DurationVar(&s.length, "for", 30*time.Minute, "how long the load lasts")
	flag.DurationVar(&s.drain, "drain", 15*time.Minute, "how long to wait, after that, for keys to go")
	flag.DurationVar(&s.every, "every", 5*time.Second, "how often to look")
	flag.Float64Var(&s.rate, "rate", 30, "operations per second and store")
	kinds := flag.String("kinds", strings.Join(names(), ","), "only these, with commas between them")
	render := flag.Bool("render", false, "only write the page")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	var err error
	if !*render {
		err = s.all(ctx, strings.Split(*kinds, ","))
	}
	if err := errors.Join(err, s.write()); err != nil {
		log.Fatal(err)
	}
}

func names() (all []string) {
	for _, k := range deploy.Kinds {
		all = append(all, k.Name)
	}
	return all
}

type soak struct {
	results, page        string
	samples              string // "" for none
	length, drain, every time.Duration
	rate                 float64

	mu sync.Mutex // guards the files
}

// all soaks kinds at the same time. Its error lists failures and growth.
func (s *soak) all(ctx context.Context, kinds []string) error {
	errs := make([]error, len(kinds))
	var work sync.WaitGroup
	for i, kind := range kinds {
		work.Go(func() {
			r, err := s.one(ctx, kind)
			if err != nil {
				errs[i] = fmt.Errorf("%s: %w", kind, err)
				return
			}
			log.Printf("%s: %s %s", kind, r.Verdict, strings.Join(r.Why, "; "))
			s.mu.Lock()
			defer s.mu.Unlock()
			errs[i] = lines.Add(s.results, r)
			if r.Verdict != Flat {
				errs[i] = errors.Join(errs[i], fmt.Errorf("%s: %s", kind, strings.Join(r.Why, "; ")))
			}
		})
	}
	work.Wait()
	return errors.Join(errs...)
}

// begin starts a kind's servers and the program with the load, and returns that program's reading from
// before it opened the store. If all kinds start at the same time, one may be too slow: begin tries
// again.
func begin(ctx context.Context, kind string, rate float64) (*deploy.Deployment, *child, reading, error) {
	for attempt := 1; ; attempt++ {
		d, err := deploy.Open(kind, deploy.Options{Clients: 1})
		if err == nil {
			var c *child
			var before, idle reading
			// Past the proxies, whose connections would count, too.
			if c, before, err = startChild(ctx, cmp.Or(d.Direct, d.URL(0)), rate); err == nil {
				if idle, err = c.say(sayRead); err == nil {
					err = lookAt(d, &idle)
				}
				if err == nil {
					before.Keys = idle.Keys
					return d, c, before, nil
				}
				err = errors.Join(err, c.end())
			}
			d.Close()
		}
		if attempt == 5 || ctx.Err() != nil {
			return nil, nil, reading{}, err
		}
		log.Printf("%s: another attempt to start, after %v", kind, err)
	}
}

// one puts load on a kind of store and judges the readings.
func (s *soak) one(ctx context.Context, kind string) (r result, err error) {
	d, c, before, err := begin(ctx, kind, s.rate)
	if err != nil {
		return r, err
	}
	defer d.Close()
	defer func() { err = errors.Join(err, c.end()) }()
	r = result{Kind: kind, Commit: lines.Commit(), For: s.length, Rate: s.rate, Series: map[string]span{}, Before: before}

	if _, err := c.say(sayStart); err != nil {
		return r, err
	}
	samples, ops := map[string][]float64{}, []float64{}
	compact := compactor(d)
	tick := time.NewTicker(s.every)
	defer tick.Stop()
	for begun := time.Now(); time.Since(begun) < s.length || len(samples[heap]) < 2*enough; {
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-tick.C:
		}
		seen, err := c.say(sayRead)
		if err != nil {
			return r, err
		}
		r.Ops, r.Failed = seen.Ops, seen.Failed
		if err := errors.Join(lookAt(d, &seen), compact()); err != nil {
			if r.Missed++; r.Missed > maxMissed+len(ops) {
				return r, err
			}
			continue // the machine is busy
		}
		if err := s.note(kind, time.Since(begun), seen); err != nil {
			return r, err
		}
		ops = append(ops, float64(seen.Ops))
		for _, name := range series {
			samples[name] = append(samples[name], seen.of(name))
		}
	}
	for name, values := range samples {
		if has(d, name) {
			r.Series[name] = spanOf(values, ops)
		}
	}

	// The same load continues with a few names, because only processes that use a store sweep it.
	begun := time.Now()
	for word := sayCalm; ; word = sayRead {
		if r.Calm, err = c.say(word); err != nil {
			return r, err
		}
		r.Drained = time.Since(begun)
		err := lookAt(d, &r.Calm)
		if err == nil && r.Calm.Keys <= r.Before.Keys+allowed(kind) {
			break
		}
		if r.Drained > s.drain {
			if err != nil {
				return r, err
			}
			break
		}
		select {
		case <-ctx.Done():
			return r, ctx.Err()
		case <-tick.C:
		}
	}
	if r.Closed, err = c.say(sayClose); err != nil {
		return r, err
	}
	r.Texts = r.Closed.Texts
	r.judge()
	return r, nil
}

// note adds a reading to the file of samples.
func (s *soak) note(kind string, after time.Duration, seen reading) error {
	if s.samples == "" {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return lines.Add(s.samples, struct {
		Kind    string  `json:"kind"`
		Seconds float64 `json:"seconds"`
		reading
	}{kind, after.Seconds(), seen})
}

// maxMissed is how many readings of the servers may fail, plus one for each successful one.
const maxMissed = 30

// has reports whether a kind has that series.
func has(d *deploy.Deployment, name string) bool {
	switch name {
	case keys:
		return d.Direct != ""
	case serverMemory, serverFiles:
		return len(d.Servers) > 0
	}
	return true
}

// lookAt adds the servers' values to a reading.
func lookAt(d *deploy.Deployment, r *reading) error {
	n, err := d.Keys()
	if err != nil {
		return fmt.Errorf("count the keys: %w", err)
	}
	var pids []int
	for _, server := range d.Servers {
		pids = append(pids, server.Pid())
	}
	r.Keys = float64(n)
	r.ServerMemory, r.ServerFiles, err = readServers(pids)
	return err
}

// compactor compacts etcd's revisions every half minute, as operators configure it.
func compactor(d *deploy.Deployment) func() error {
	if !strings.HasPrefix(d.Kind, "etcd") {
		return func() error { return nil }
	}
	last := time.Now()
	return func() error {
		if time.Since(last) < 30*time.Second {
			return nil
		}
		last = time.Now()
		return d.Deafen()
	}
}

// write tidies the results and writes the page.
func (s *soak) write() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := tidy(s.results); err != nil {
		return err
	}
	all, err := known(s.results)
	if err != nil {
		return err
	}
	text, err := page(all)
	if err != nil {
		return err
	}
	return os.WriteFile(s.page, []byte(text), 0o644)
}
