// Package fault breaks things on purpose: clients, the wires between them and
// the servers, and the servers.
package fault

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/verify/deploy"
	"github.com/batonhq/baton/internal/verify/history"
)

// A Client is a process that works. Its methods are safe for concurrent use.
type Client interface {
	// Signal sends it SIGSTOP, SIGCONT or SIGKILL; after the last it returns
	// when the process is gone.
	Signal(os.Signal) error
	// Revive starts it anew, after it was killed.
	Revive() error
	// Holds reports whether it holds a lock, as far as it has said.
	Holds() bool
	// StopAtWrite has it stop itself as SIGSTOP does, when it has found a lease
	// valid and before it writes, and returns when it has. If ctx ends first it
	// does not stop any more.
	StopAtWrite(ctx context.Context) error
	// Suspend has its clock jump, as if the machine had slept for so long.
	Suspend(time.Duration) error
}

// A Scene is what there is to break.
type Scene struct {
	Clients []Client
	Proxies func(client int) []*faultproxy.Proxy // none where the client talks to no server of ours or by no TCP
	Servers *deploy.Deployment                   // nil if they are not ours to break
	TTL     time.Duration
	Rand    *rand.Rand // all chance comes from here
	Mark    func(history.MarkWhat, string)

	part, parts int // of the faults that are there together; 0 parts: there is one
}

// A Fault is one way to break a scene.
type Fault struct {
	ID   string // "f04"
	Name string // "pause"
	Does string // one line for people
	// Needs reports what the scene lacks for it, or "".
	Needs func(*Scene) string
	// TTL is the shortest with which what is claimed holds; 0 is any.
	TTL time.Duration
	// Owed has liveness owed all the time, and not when all is over alone: nothing is
	// down, it is far away or slow.
	Owed bool
	// RoundTrip is the longest that a request takes meanwhile, if that is long: what
	// waiters are owed takes several.
	RoundTrip time.Duration
	// What the servers have to be started for: clocks that can be set, disks that can
	// be stalled.
	Clocks, Disks bool
	// Callers has some of the clients use a connection of their own, as programs do
	// that have one already.
	Callers bool
	// Run breaks and heals once, with a mark for each: when it returns, also
	// with an error, all is whole again. It returns soon after ctx ends. A run
	// calls it again and again.
	Run func(context.Context, *Scene) error
}

// All are the faults there are, in the order of their IDs.
func All() []Fault {
	all := slices.Concat(clientFaults, serverFaults)
	slices.SortFunc(all, func(a, b Fault) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// OfServers reports whether a fault is one of the servers', which may be another
// deployment than before when they are whole again.
func OfServers(id string) bool {
	return slices.ContainsFunc(serverFaults, func(f Fault) bool { return f.ID == id })
}

// pause waits, for a fault that lasts. It returns early if ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-ctx.Done():
	}
}

// upTo draws a time of at most d.
func (s *Scene) upTo(d time.Duration) time.Duration {
	return time.Duration(s.Rand.Int64N(int64(d) + 1))
}

// breaks marks that a fault has set in; the returned function that it is over.
func (s *Scene) breaks(format string, args ...any) (heals func()) {
	text := fmt.Sprintf(format, args...)
	s.Mark(history.Breaks, text)
	return func() { s.Mark(history.Heals, text) }
}
