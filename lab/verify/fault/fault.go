// Package fault breaks things on purpose: clients, their connections to the servers,
// and the servers.
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
	"github.com/batonhq/baton/lab/verify/deploy"
	"github.com/batonhq/baton/lab/verify/history"
)

// A Process can be stopped and killed. Its methods are safe for concurrent use.
type Process interface {
	// Signal sends it Stop, Continue or SIGKILL. After SIGKILL it returns when the
	// process is gone.
	Signal(os.Signal) error
	// Revive starts it again, after it was killed.
	Revive() error
}

// A Client is a process under test.
type Client interface {
	Process
	// Holds reports whether it holds a lock, as far as it has said.
	Holds() bool
	// StopAtWrite makes it stop itself as SIGSTOP does, when it has found a lease valid
	// and before it writes, and returns when it has stopped. If ctx ends first it will
	// not stop.
	StopAtWrite(ctx context.Context) error
	// Suspend makes its clock jump, as if the machine had slept for that long.
	Suspend(time.Duration) error
}

// A Scene is everything that can be broken.
type Scene struct {
	Clients []Client
	Proxies func(client int) []*faultproxy.Proxy // none where the client talks to no server of ours, or not by TCP
	Library bool                                 // all clients use the library, whose clock can be made to jump

	// What stands between clients and the store, if anything does. Proxies has their
	// connections, too.
	Agents, Replicas []Process

	Servers *deploy.Deployment // nil if the servers are not ours to break
	TTL     time.Duration
	Rand    *rand.Rand // the only source of chance
	Mark    func(history.MarkWhat, string)

	// Silent marks that no request of a client is answered; AllClients: of none. The
	// returned function marks that some may be.
	Silent func(client int) (over func())

	part, parts int // of the faults that run together; 0 parts: there is one
}

// A Fault is one way to break a scene.
type Fault struct {
	ID   string // "f04"
	Name string // "pause"
	Does string // one line for people
	// Needs reports what the scene lacks for it, or "".
	Needs func(*Scene) string
	// TTL is the shortest TTL for which the claims hold; 0 is any.
	TTL time.Duration
	// Owed says that liveness is owed all the time, and not only when the faults are
	// over: nothing is down, it is only far away or slow.
	Owed bool
	// Always says that waiters are owed a grant while the fault lasts, too: it breaks
	// other clients only.
	Always bool
	// RoundTrip is the longest time that a request takes meanwhile, if that is long: a
	// grant takes several requests.
	RoundTrip time.Duration
	// What the servers have to be started with: clocks that can be set, disks that can
	// be stalled.
	Clocks, Disks bool
	// Callers makes some clients use a connection of their own, as programs do that
	// already have one.
	Callers bool
	// Run breaks and heals once, with a mark for each: when it returns, even with an
	// error, nothing is broken any more. It returns soon after ctx ends. A run calls it
	// again and again.
	Run func(context.Context, *Scene) error
}

// All are all faults, in the order of their IDs.
func All() []Fault {
	all := slices.Concat(clientFaults, serverFaults)
	slices.SortFunc(all, func(a, b Fault) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// OfServers reports whether a fault breaks servers. Afterwards they may have other
// roles and data than before.
func OfServers(id string) bool {
	return slices.ContainsFunc(serverFaults, func(f Fault) bool { return f.ID == id })
}

// pause waits while a fault lasts. It returns early if ctx ends.
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

// AllClients are the clients that Scene.Silent is for when servers are silent.
const AllClients = -1

// silent marks that no request of a client is answered; the returned function marks
// that some may be.
func (s *Scene) silent(client int) (over func()) {
	if s.Silent == nil {
		return func() {}
	}
	return s.Silent(client)
}

// alone reports whether one server answers all requests.
func (s *Scene) alone() bool { return len(s.Servers.Servers) == 1 }

// breaks marks that a fault has set in; the returned function marks its end.
func (s *Scene) breaks(format string, args ...any) (heals func()) {
	text := fmt.Sprintf(format, args...)
	s.Mark(history.Breaks, text)
	return func() { s.Mark(history.Heals, text) }
}
