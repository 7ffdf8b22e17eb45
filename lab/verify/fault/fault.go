// Package fault breaks clients, their connections to the servers, and the servers.
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
	// Signal sends it Stop, Continue or SIGKILL. After SIGKILL it returns when the process has
	// ended.
	Signal(os.Signal) error
	// Revive starts it again, after it was killed.
	Revive() error
}

// A Client is a process under test.
type Client interface {
	Process
	// Holds reports whether it holds a lock, according to its messages.
	Holds() bool
	// StopAtWrite makes it stop itself as by SIGSTOP, after it has found a lease valid and
	// before it writes, and returns when it has stopped. If ctx ends earlier, it will not stop.
	StopAtWrite(ctx context.Context) error
	// Suspend makes its clock jump, as if the machine had slept for that time.
	Suspend(time.Duration) error
}

// A Scene has everything that can be broken.
type Scene struct {
	Clients []Client
	Proxies func(client int) []*faultproxy.Proxy // none if the client does not use TCP to a started server
	Library bool                                 // all clients use the library, whose clock can jump

	// Agents and Replicas are the processes between clients and the store, if there are any.
	// Proxies includes their connections.
	Agents, Replicas []Process

	Servers *deploy.Deployment // nil if the servers must not be broken
	TTL     time.Duration
	Rand    *rand.Rand // the only source of randomness
	Mark    func(history.MarkWhat, string)

	// Silent marks that a client's requests are not answered; client may be AllClients. over
	// marks that answers may come again.
	Silent func(client int) (over func())

	part, parts int // of the faults that run together; parts is 0 for a single fault
}

// A Fault is one way to break a scene.
type Fault struct {
	ID   string // "f04"
	Name string // "pause"
	Does string // one line for people
	// Needs reports what the scene lacks for the fault, or "".
	Needs func(*Scene) string
	// TTL is the shortest TTL for which the claims hold; 0 is any.
	TTL time.Duration
	// Owed says that liveness is owed all the time, and not only after the faults: no process
	// is down, only far away or slow.
	Owed bool
	// Always says that waiters are owed a grant during the fault, too: it breaks only other
	// clients.
	Always bool
	// RoundTrip is the longest time of a request during the fault, if that is long. A grant
	// takes several requests.
	RoundTrip time.Duration
	// Clocks and Disks say what the servers need at their start: adjustable clocks, stallable
	// disks.
	Clocks, Disks bool
	// Callers makes some clients use their own connection, like programs that already have
	// one.
	Callers bool
	// Run breaks and heals once, with a mark for each. When it returns, even with an error, the
	// fault is over. It returns soon after ctx ends. A trial calls it repeatedly.
	Run func(context.Context, *Scene) error
}

// All are all faults, in the order of their IDs.
func All() []Fault {
	all := slices.Concat(clientFaults, serverFaults)
	slices.SortFunc(all, func(a, b Fault) int { return strings.Compare(a.ID, b.ID) })
	return all
}

// OfServers reports whether a fault breaks servers. Afterwards they may have other roles and
// data than before.
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

// AllClients is the argument of Scene.Silent if servers are silent.
const AllClients = -1

// silent marks that a client's requests are not answered; over marks that answers may come again.
func (s *Scene) silent(client int) (over func()) {
	if s.Silent == nil {
		return func() {}
	}
	return s.Silent(client)
}

// alone reports whether one server answers all requests.
func (s *Scene) alone() bool { return len(s.Servers.Servers) == 1 }

// breaks marks the beginning of a fault; heals marks its end.
func (s *Scene) breaks(format string, args ...any) (heals func()) {
	text := fmt.Sprintf(format, args...)
	s.Mark(history.Breaks, text)
	return func() { s.Mark(history.Heals, text) }
}
