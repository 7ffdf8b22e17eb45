package redlock

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
)

// CountError refuses a number of servers that makes no useful majority.
type CountError struct{ Nodes int }

func (e *CountError) Error() string {
	switch {
	case e.Nodes < 3:
		return fmt.Sprintf("redlock: %s too few: a majority that survives the loss of one needs 3", areServers(e.Nodes))
	case e.Nodes > maxNodes:
		return fmt.Sprintf("redlock: %s too many: at most %d are accepted", areServers(e.Nodes), maxNodes)
	}
	return fmt.Sprintf("redlock: %d servers survive the loss of no more than %d do, and need a larger majority: name an odd number", e.Nodes, e.Nodes-1)
}

// Finding implements driver.Refusal.
func (e *CountError) Finding() (driver.Finding, bool) {
	f := driver.Finding{Name: "nodes", Severity: driver.Unsafe}
	switch {
	case e.Nodes < 3:
		f.What = areServers(e.Nodes) + " too few: while one is away there is no majority, and nothing can be locked or renewed"
		f.Mend = "name three or five independent servers; one server alone is redis://"
	case e.Nodes > maxNodes:
		f.What = fmt.Sprintf("%s too many: at most %d are accepted", areServers(e.Nodes), maxNodes)
		f.Mend = "name five of them; more make every lock slower and none safer"
	default:
		f.What = fmt.Sprintf("%d is an even number of servers: they survive the loss of no more than %d do, and need a larger majority", e.Nodes, e.Nodes-1)
		f.Mend = "name one server more or one less, the same ones in every program"
	}
	return f, true
}

func areServers(n int) string {
	if n == 1 {
		return "1 server is"
	}
	return fmt.Sprintf("%d servers are", n)
}

// DuplicateError refuses two names of one server, which would have two votes.
type DuplicateError struct{ First, Second string }

func (e *DuplicateError) Error() string {
	return fmt.Sprintf("redlock: %s and %s are the same server, which must have one vote: name each server once", e.First, e.Second)
}

// Finding implements driver.Refusal.
func (e *DuplicateError) Finding() (driver.Finding, bool) {
	return driver.Finding{
		Name: "duplicate-node", Severity: driver.Unsafe,
		What: e.First + " and " + e.Second + " are the same server: what counts as two votes is lost with one server",
		Mend: "name each server once, by the same name in every program",
	}, true
}

// ReplicatedError refuses a server that has replicas.
type ReplicatedError struct {
	Node     string
	Replicas int
}

func (e *ReplicatedError) Error() string {
	return fmt.Sprintf("redlock: %s has replicas (%d): one that is promoted may not know a lock that is held; detach them, or allow it explicitly", e.Node, e.Replicas)
}

// Finding implements driver.Refusal.
func (e *ReplicatedError) Finding() (driver.Finding, bool) {
	return driver.Finding{
		Name: "node-replicas", Severity: driver.Unsafe,
		What: fmt.Sprintf("%s has replicas (%d): one that is promoted may not know a lock that is held, and votes for another holder", e.Node, e.Replicas),
		Mend: "REPLICAOF NO ONE on each of its replicas: the other servers are what a quorum has instead of them",
	}, true
}

// YoungError says that no lock can be granted yet: too many of the answering servers
// started recently, and the others are no majority. It is a driver.ErrUnavailable.
type YoungError struct {
	// Nodes answer, and may have forgotten a held lock.
	Nodes []string

	// Left is the time until a majority votes, if none of them restarts. It is 0 if that
	// takes other servers, which do not answer.
	Left time.Duration

	// Longest is the longest TTL (LongestTTL), for which a started server does not vote.
	Longest time.Duration
}

func (e *YoungError) Error() string {
	when := "a majority also takes servers that do not answer"
	if e.Left > 0 {
		when = fmt.Sprintf("a majority votes in %v", max(e.Left.Round(time.Second), time.Second))
	}
	return fmt.Sprintf("redlock: %v: no majority votes yet: %s restarted less than %v ago and may have forgotten a lock that is held, so what is granted there does not count; "+
		"%s; a longest-ttl below %v, the same in all programs, shortens that", driver.ErrUnavailable, strings.Join(e.Nodes, ", "), e.Longest, when, e.Longest)
}

func (e *YoungError) Unwrap() error { return driver.ErrUnavailable }

// NodeError is an error about one server.
type NodeError struct {
	Node string
	Err  error
}

func (e *NodeError) Error() string { return "redlock: " + e.Node + ": " + e.Err.Error() }

func (e *NodeError) Unwrap() error { return e.Err }

// Finding implements driver.Refusal, for a server that refuses itself.
func (e *NodeError) Finding() (f driver.Finding, ok bool) {
	refusal, is := errors.AsType[driver.Refusal](e.Err)
	if !is {
		return f, false
	}
	if f, ok = refusal.Finding(); ok {
		f = findings.On(f, e.Node)
	}
	return f, ok
}

// refusal is the error of an attempt that no release can help.
func (s *Store) refusal(key string, answers []answer) error {
	for _, a := range answers {
		if e, ok := errors.AsType[*driver.NotLockError](a.err); ok {
			return &driver.NotLockError{Key: key, Store: "redlock", Found: e.Found}
		}
		if a.err != nil && !unreachable(a.err) && !errors.Is(a.err, driver.ErrHeld) {
			return a.err
		}
	}
	return nil
}

// verdict is the error of an attempt without a majority.
func (s *Store) verdict(key string, answers []answer) error {
	if err := s.refusal(key, answers); err != nil {
		return err
	}
	held := &driver.HeldError{Key: key}
	var refused, failed, pending, young, duplicates set
	for i, a := range answers {
		e, ok := errors.AsType[*driver.HeldError](a.err)
		switch {
		case ok:
			refused |= 1 << i
			held.Waiting = max(held.Waiting, e.Waiting)
			if held.Remaining == 0 || e.Remaining > held.Remaining && (held.Foreign || !e.Foreign) {
				held.Owner, held.Age, held.Remaining, held.Foreign = e.Owner, e.Age, e.Remaining, e.Foreign
			}
		case a.err == nil && a.answered && a.grant.Waiting:
			refused |= 1 << i
		case a.err == nil && a.answered:
			switch {
			case a.votes:
			case s.nodes[i].duplicate.Load() != nil:
				duplicates |= 1 << i
			default:
				young |= 1 << i
			}
		case a.answered:
			failed |= 1 << i
		default:
			pending |= 1 << i
		}
	}
	missing := failed | pending | young | duplicates
	if missing.count() <= len(s.nodes)-s.quorum && refused != 0 {
		return held
	}
	err := fmt.Errorf("redlock: %w: no majority", driver.ErrUnavailable)
	if young != 0 {
		err = s.tooYoung(young, pending, s.quorum-(len(s.nodes)-missing.count()))
	}
	if duplicates != 0 {
		err = fmt.Errorf("%w; without a vote: %s, which cannot be told from another", err, s.names(duplicates))
	}
	if young == 0 {
		failed |= pending // otherwise the round did not wait for them
	}
	return s.silence(err, failed, answers)
}

// tooYoung is the error of an attempt that lacks that many votes for a majority, while
// some servers do not vote yet. For servers that the round did not wait for their last
// answer counts.
func (s *Store) tooYoung(young, pending set, lack int) error {
	e := &YoungError{Longest: s.longest}
	var left []time.Duration
	for i, n := range s.nodes {
		from := n.votesFrom.Load()
		votes := from == nil || time.Until(*from) <= 0
		switch {
		case young.has(i):
			e.Nodes = append(e.Nodes, n.name)
			if !votes {
				left = append(left, time.Until(*from))
			}
		case !pending.has(i):
		case votes:
			lack--
		default:
			left = append(left, time.Until(*from))
		}
	}
	slices.Sort(e.Nodes)
	slices.Sort(left)
	if lack = max(lack, 1); lack <= len(left) {
		e.Left = left[lack-1]
	}
	return e
}

// unknown is the error of a request without enough answers. last is one of the errors:
// ErrUnavailable in it tells nothing about the other servers.
func unknown(what string, last error) error {
	if errors.Is(last, driver.ErrUnavailable) {
		last = errors.New(last.Error())
	}
	return fmt.Errorf("redlock: %w: %s: %w", driver.ErrUnknown, what, last)
}

// silence adds to an error which servers did not answer, and the reason if known.
func (s *Store) silence(err error, silent set, answers []answer) error {
	if silent == 0 {
		return err
	}
	err = fmt.Errorf("%w; no answer from %s", err, s.names(silent))
	for _, a := range answers {
		if a.err != nil && unreachable(a.err) && !errors.Is(a.err, errLeftAlone) {
			return fmt.Errorf("%w (%w)", err, a.err)
		}
	}
	return err
}
