package redlock

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/quorum"
)

const (
	// examineTimeout bounds what one server is asked.
	examineTimeout = 3 * time.Second

	// farApart is how far the clocks of two servers may be from each other before that
	// is a finding.
	farApart = time.Second
)

// Examine implements driver.Examiner. It asks every server, and lets those that can
// examine themselves. A finding that is not true of all says which servers it is about.
// Servers that do not answer are a finding and an error.
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

// report is what one server says about itself.
type report struct {
	err    error // why not everything could be asked
	silent bool  // it does not answer
	life   quorum.Life
	found  []driver.Finding

	clock  bool
	offset time.Duration // of its clock from this machine's
	within time.Duration // how exact that is
}

// askServer asks one server. Unlike other requests it also asks a server that lately did
// not answer.
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
		r.err, r.silent = &NodeError{n.name, err}, unreachable(err) // what is known of its life may be old
	}
	return r
}

// judgeSet says what is wrong with the servers as a set.
func (s *Store) judgeSet(asked []report) (all []driver.Finding) {
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
	if len(silent) > 0 {
		f := driver.Finding{
			Name: "node-unreachable", Severity: driver.Slow,
			What: fmt.Sprintf("no answer from %s: %d more of the %d servers may fail before nothing can be locked or renewed",
				strings.Join(silent, ", "), len(s.nodes)-s.quorum-len(silent), len(s.nodes)),
			Mend: "start it, or look at the network on the way; if it is gone for good, name another one in every program",
		}
		if len(silent) > len(s.nodes)-s.quorum {
			f.Severity = driver.Unsafe
			f.What = fmt.Sprintf("no answer from %s: the rest of the %d servers is no majority, nothing can be locked or renewed", strings.Join(silent, ", "), len(s.nodes))
		}
		all = append(all, f)
	}
	if len(young) > 0 {
		f := driver.Finding{
			Name: "node-young",
			What: fmt.Sprintf("%s started lately: for another %v its grants do not count, as it may have forgotten a lock that is held", strings.Join(young, ", "), left.Round(time.Second)),
			Mend: "wait; or lower longest-ttl in every program, if no lock needs so long a TTL",
		}
		if votes < s.quorum {
			f.Severity = driver.Slow
			f.What += fmt.Sprintf("; %d of %d servers vote, so until then nothing can be locked", votes, len(s.nodes))
		}
		all = append(all, f)
	}
	return all
}

// judgeClocks compares the servers' clocks with each other.
func (s *Store) judgeClocks(asked []report) []driver.Finding {
	first, last := -1, -1
	for i, t := range asked {
		switch {
		case !t.clock:
			continue
		case first < 0:
			first, last = i, i
		}
		if t.offset < asked[first].offset {
			first = i
		}
		if t.offset > asked[last].offset {
			last = i
		}
	}
	if first < 0 {
		return nil
	}
	apart := asked[last].offset - asked[first].offset
	if apart-asked[first].within-asked[last].within < farApart {
		return nil
	}
	return []driver.Finding{{
		Name: "node-clocks", Severity: driver.Unsafe,
		What: fmt.Sprintf("the clock of %s is %v ahead of that of %s: when one of them is set right it jumps, a jump forward ends locks there too early, and makes a server that restarted vote too early",
			s.nodes[last].name, apart.Round(10*time.Millisecond), s.nodes[first].name),
		Mend: "run chrony or ntpd on every server, set to slew the clock and not to step it",
	}}
}

// judgeNodes gathers what the servers say about themselves, in the light of what
// the quorum makes up for.
func (s *Store) judgeNodes(asked []report) (all []driver.Finding) {
	at := map[driver.Finding][]string{}
	told := 0
	for i, t := range asked {
		if t.silent {
			continue
		}
		told++
		for _, f := range t.found {
			f, keep := s.judge(f)
			if !keep {
				continue
			}
			if at[f] == nil {
				all = append(all, f)
			}
			at[f] = append(at[f], s.nodes[i].name)
		}
	}
	for i, f := range all {
		if names := at[f]; len(names) < told && !strings.HasSuffix(f.What, on(names)) {
			all[i].What += on(names)
		}
	}
	return all
}

func on(names []string) string { return " (on " + strings.Join(names, ", ") + ")" }

// judge turns a server's finding about itself into what it means in a quorum. Servers
// that forget do no harm if they do not vote afterwards, and all harm if they do.
// Replicas are judged by judgeSet.
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
