package redlock

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
	"github.com/batonhq/baton/internal/quorum"
)

const (
	// examineTimeout bounds the questions to one server.
	examineTimeout = 3 * time.Second

	// farApart is the difference between the clocks of two servers that is a finding.
	farApart = time.Second
)

// Examine implements driver.Examiner. It asks every server, and calls the Examine of
// those that have one. A finding names its servers unless it is about all. Servers that
// do not answer are a finding and an error.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	if err := s.check(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, examineTimeout)
	defer cancel()
	asked := make([]report, len(s.nodes))
	var wg sync.WaitGroup
	for i, n := range s.nodes {
		wg.Go(func() { asked[i] = s.askServer(ctx, n) })
	}
	wg.Wait()
	var errs []error
	for _, t := range asked {
		if t.err != nil {
			errs = append(errs, t.err)
		}
	}
	return slices.Concat(s.judgeSet(asked), s.judgeClocks(asked), s.judgeNodes(asked)), errors.Join(errs...)
}

// report is the result of one server.
type report struct {
	err    error // why some questions have no answer
	silent bool  // it does not answer
	life   quorum.Life
	found  []driver.Finding

	clock  bool
	offset time.Duration // of its clock from this machine's
	within time.Duration // how exact that is
}

// askServer asks one server, even one that recently did not answer.
func (s *Store) askServer(ctx context.Context, n *node) (r report) {
	in, err := s.reach(ctx, n)
	if err == nil {
		if r.life, err = in.Life(ctx); err != nil {
			err = &NodeError{n.name, err}
		}
	}
	if err != nil {
		if refusal, ok := errors.AsType[driver.Refusal](err); ok {
			if f, ok := refusal.Finding(); ok {
				r.found = []driver.Finding{f}
				return r
			}
		}
		r.err, r.silent = err, true
		return r
	}
	if id := n.life.Load(); id == nil || *id != r.life.Server {
		s.learn(n, r.life)
	}
	if e, ok := in.Member.(driver.Examiner); ok {
		r.found, err = e.Examine(ctx)
	}
	if c, ok := in.Member.(driver.Clock); ok && err == nil {
		start := time.Now()
		var at time.Time
		at, err = c.ServerTime(ctx)
		r.within = time.Since(start) / 2
		r.clock, r.offset = err == nil, at.Sub(start.Add(r.within))
	}
	if err != nil {
		r.err, r.silent = &NodeError{n.name, err}, unreachable(err) // the known life may be outdated
	}
	return r
}

// judgeSet returns the findings about the servers as a set.
func (s *Store) judgeSet(asked []report) (all findings.Table) {
	var silent, young []string
	var left time.Duration
	votes := 0
	for i, t := range asked {
		n := s.nodes[i]
		if t.silent {
			silent = append(silent, n.name)
			continue
		}
		if t.life.Server == "" {
			continue // refused
		}
		if duplicate := n.duplicate.Load(); duplicate != nil {
			f, _ := (&DuplicateError{duplicate.name, n.name}).Finding()
			all = append(all, f)
			continue
		}
		if t.life.Replicas > 0 {
			f, _ := (&ReplicatedError{n.name, t.life.Replicas}).Finding()
			all = append(all, f)
		}
		if until := s.longest + drift(s.longest) - t.life.Age; until > 0 && !s.durable {
			young, left = append(young, n.name), max(left, until)
			continue
		}
		votes++
	}
	spare := len(s.nodes) - s.quorum - len(silent)
	const start = "start it, or look at the network on the way; if it is gone for good, name another one in every program"
	all.Say(len(silent) > 0 && spare >= 0, "node-unreachable", driver.Slow, start,
		"no answer from %s: %d more of the %d servers may fail before nothing can be locked or renewed", strings.Join(silent, ", "), spare, len(s.nodes))
	all.Say(spare < 0, "node-unreachable", driver.Unsafe, start,
		"no answer from %s: the rest of the %d servers is no majority, nothing can be locked or renewed", strings.Join(silent, ", "), len(s.nodes))
	severity, until := driver.Note, ""
	if votes < s.quorum {
		severity, until = driver.Slow, fmt.Sprintf("; %d of %d servers vote, so until then nothing can be locked", votes, len(s.nodes))
	}
	all.Say(len(young) > 0, "node-young", severity, "wait; or lower longest-ttl in every program, if no lock needs so long a TTL",
		"%s started lately: for another %v its grants do not count, as it may have forgotten a lock that is held%s", strings.Join(young, ", "), left.Round(time.Second), until)
	return all
}

// judgeClocks compares the servers' clocks with each other.
func (s *Store) judgeClocks(asked []report) (all findings.Table) {
	var told []int // those with a clock
	for i, t := range asked {
		if t.clock {
			told = append(told, i)
		}
	}
	if told == nil {
		return nil
	}
	byOffset := func(i, j int) int { return cmp.Compare(asked[i].offset, asked[j].offset) }
	first, last := slices.MinFunc(told, byOffset), slices.MaxFunc(told, byOffset)
	apart := asked[last].offset - asked[first].offset
	all.Say(apart-asked[first].within-asked[last].within >= farApart, "node-clocks", driver.Unsafe, "run chrony or ntpd on every server, set to slew the clock and not to step it",
		"the clock of %s is %v ahead of that of %s: when one of them is set right it jumps, a jump forward ends locks there too early, and makes a server that restarted vote too early",
		s.nodes[last].name, apart.Round(10*time.Millisecond), s.nodes[first].name)
	return all
}

// judgeNodes collects the servers' findings about themselves, as far as they matter in a
// quorum.
func (s *Store) judgeNodes(asked []report) []driver.Finding {
	var names []string
	var found [][]driver.Finding
	for i, t := range asked {
		if t.silent {
			continue
		}
		var kept []driver.Finding
		for _, f := range t.found {
			if f, keep := s.judge(f); keep {
				kept = append(kept, f)
			}
		}
		names, found = append(names, s.nodes[i].name), append(found, kept)
	}
	return findings.Merge(names, found)
}

// judge turns a server's finding about itself into its meaning in a quorum: a server that
// forgets is harmless only if it does not vote afterwards. judgeSet judges replicas.
func (s *Store) judge(f driver.Finding) (judged driver.Finding, keep bool) {
	switch f.Name {
	case "persistence", "appendfsync":
		if !s.durable {
			return f, false
		}
		return driver.Finding{
			Name: "durable", Severity: driver.Unsafe,
			What: "the servers are said to forget nothing (durable), so they vote as soon as they start again, but " + f.What,
			Mend: "CONFIG SET appendonly yes and CONFIG SET appendfsync always, and the same in redis.conf; or leave durable away in every program",
		}, true
	case "min-replicas-to-write", "replication", "replica-lag":
		return f, false
	}
	return f, true
}
