// Package planted has defects that lock services and their clients have had, for the verification to
// find: a verification that does not find them proves nothing when it finds no others. Only its tests
// import it.
package planted

import (
	"net"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/badstores"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/store/memstore"
)

// A Defect is one mistake, in the store that is served to all clients, or in each client's use of it.
type Defect struct {
	Name   string
	Fault  string        // the ID of the fault under which it shows
	Breaks check.Promise // the promise that is seen to break; others may, too
	Check  string        // the check that finds it, if it is always the same
	Local  string        // the kind of servers under which it shows, if Store is nil
	Keys   int           // the number of locks, if the defect depends on it

	TTL   time.Duration // if the defect depends on it
	Keeps bool          // a correct store loses no lease under the fault

	// Ways are those of verify.Config. Clients in other languages have defects of their own.
	Ways []string
	// Listen adds the defect to the connections of agents. Nil changes nothing.
	Listen func(net.Listener) net.Listener

	// Store returns the served store: locks, and limits if it is a limits.Store.
	Store func() driver.Locks
	// Spoil adds the defect to the store that a client has opened. Nil changes nothing.
	Spoil func(driver.Store) driver.Store
}

// All are the defects. A name says what the store or client does.
var All = []Defect{
	// The store decides wrongly about locks.
	store("never expires", "f02", check.Lively, bug(badstores.NeverExpires)),
	{Name: "expires late", Fault: "f02", Breaks: check.Lively, Check: "waiting", Keys: 1, Store: spoilt(expiresLate)},
	store("expires early", "f06", check.Exclusive, bug(badstores.ExpiresEarly)),
	store("renews for show", "f01", check.Exclusive, bug(badstores.RenewsForShow)),
	store("looks whether the lock is free, and then takes it", "f01", check.Exclusive, bug(badstores.ChecksThenActs)),
	store("forgets the token on release", "f01", check.Fenced, bug(badstores.ForgetsOnRelease)),
	store("hands over by release alone", "f02", check.Lively, bug(badstores.WaitsForRelease)),
	store("one permit too many", "f01", check.Exclusive, bug(badstores.OneTooMany)),
	store("one permit too few", "f01", check.Lively, bug(badstores.OneTooFew)),
	store("evicts what is seldom used", "f01", check.Exclusive, spoilt(evicts)),
	store("tokens wrap around", "f01", check.Fenced, spoilt(tokensWrap)),
	store("the counter of tokens is lost", "f01", check.Fenced, spoilt(counterLost)),
	store("releases by name", "f04", check.Exclusive, spoilt(releasesByName)),
	store("grants a repeated request anew", "f07", check.Exclusive, spoilt(grantsRetryAnew)),
	store("says that it renewed before it has", "f01", check.Exclusive, spoilt(renewsLater)),
	store("readers exclude nobody", "f01", check.Exclusive, spoilt(readersPass)),
	store("counts holders, not permits", "f01", check.Exclusive, spoilt(countsHolders)),
	store("a release frees all permits", "f01", check.Exclusive, spoilt(freesAll)),
	store("its clock goes too fast", "f06", check.Exclusive, spoilt(fastClock)),
	{Name: "grants the last in line", Fault: "f01", Breaks: check.Lively, Check: "overtaken", Keys: 1, Store: bug(badstores.LastInFirstOut)},

	// The client is wrong about its locks.
	client("takes a failed renewal for a renewal", "f06", check.Exclusive, trustsFailures),
	client("renews nothing", "f01", check.Exclusive, renewsNothing),
	client("counts the TTL from an answer that was slow", "f06", check.Exclusive, asksFor(7, 10)),
	client("takes the TTL for twice as long", "f06", check.Exclusive, asksFor(1, 2)),
	client("each process counts its tokens", "f01", check.Fenced, ownTokens),
	client("one token for all", "f01", check.Fenced, oneToken),
	client("tokens are random", "f01", check.Fenced, randomTokens),
	client("releases late, by name", "f01", check.Exclusive, releasesLate),
	client("unlocks twice", "f01", check.Exclusive, unlocksTwice),
	client("waits for a wake-up that was lost", "f01", check.Lively, neverAsks),
	client("steals what is held", "f01", check.Exclusive, steals),
	client("writers ask as readers", "f01", check.Exclusive, writersRead),
	client("permits are counted by each process", "f01", check.Exclusive, ownPermits),
	client("falls open when the store is silent", "f06", check.Exclusive, fallsOpen),
	client("its watchdog outlives the lock", "f01", check.Lively, zombie),

	{Name: "renews too late", Fault: "f01", Breaks: check.Lively, Check: "lost", Store: Right, Spoil: renewsTooLate},

	// Other faults: a far, slow, hung or restarted store, a clock that steps.
	{Name: "asks a connection for ever that is dead", Fault: "f26", Breaks: check.Lively, Check: "lost", Keeps: true, Store: Right},
	{Name: "gives up what takes long, and is far away", Fault: "f27", Breaks: check.Lively, Check: "lost", TTL: 10 * time.Second, Keeps: true, Store: Right, Spoil: hasty},
	{Name: "gives up what takes long, of a server that is slow", Fault: "f28", Breaks: check.Lively, Check: "lost", Keeps: true, Store: Right, Spoil: hasty},
	{Name: "counts on a clock that steps", Fault: "f29", Breaks: check.Exclusive, Local: "redis"},
	{Name: "waits for a wake-up that nobody may send", Fault: "f30", Breaks: check.Lively, Local: "redis", Spoil: neverAsks},
	{Name: "forgets everything when all restart", Fault: "f31", Breaks: check.Exclusive, Local: "redis-nopersist"},
	{Name: "does not ask a second time", Fault: "f33", Breaks: check.Lively, Check: "lost", Local: "etcd3", TTL: 6 * time.Second, Keeps: true, Spoil: asksOnce},

	// The client in another language, or the agent.
	{Name: "ignores the loss, by the agent", Fault: "f06", Breaks: check.Exclusive, Local: "redis", Keys: 1, Ways: []string{"agent"}},
	{Name: "ignores the loss, over HTTP", Fault: "f04", Breaks: check.Exclusive, Local: "redis", Keys: 1, Ways: []string{"http"}},
	{Name: "counts from the receipt, by the agent", Fault: "f35", Breaks: check.Exclusive, Local: "sqlite", Keys: 1, Ways: []string{"agent"}},
	{Name: "counts from the receipt, over HTTP", Fault: "f01", Breaks: check.Exclusive, Local: "sqlite", Keys: 1, Ways: []string{"http"}},
	{Name: "an agent does not see that a client has died", Fault: "f02", Breaks: check.Lively, Local: "sqlite", Ways: []string{"agent"}, Listen: deafToTheEnd},

	// A leak.
	leak("leaves a goroutine behind", "goroutines", leavesGoroutine),
	leak("leaves a descriptor open", "descriptors", leavesDescriptor),
	leak("does not close its connection", "connections", leavesConnection),
	leak("forgets a lock", "leaks", leaves(aside)),
	leak("remembers every key", "memory", remembersKeys),
	{Name: "forgets a lock of another name", Fault: "f01", Breaks: check.Lively, Check: "keys", Local: "sqlite", Spoil: leaves(elsewhere)},
	{Name: "leaves a row for each request", Fault: "f01", Breaks: check.Lively, Check: "rows", Local: "sqlite", Spoil: leavesRows},

	// Limits.
	store("asks a limiter, and then takes", "f01", check.Bounded, limitBug(badstores.AsksThenTakes)),
	client("each process limits for itself", "f01", check.Bounded, ownLimits),
	client("limits take nothing", "f01", check.Bounded, takesNothing),
	client("remembers for a while that it was allowed", "f01", check.Bounded, remembersAllowed),
	client("a look gives back what was taken", "f01", check.Bounded, looksGiveBack),
	leak("gives turns to those whom it refuses", "share", givesTurnsAnyway),
}

// Find returns the defect with that name.
func Find(name string) (Defect, bool) {
	for _, d := range All {
		if d.Name == name {
			return d, true
		}
	}
	return Defect{}, false
}

// Right is a store without a defect.
func Right() driver.Locks { return memstore.New() }

func store(name, fault string, breaks check.Promise, s func() driver.Locks) Defect {
	return Defect{Name: name, Fault: fault, Breaks: breaks, Store: s}
}

func client(name, fault string, breaks check.Promise, spoil func(driver.Store) driver.Store) Defect {
	return Defect{Name: name, Fault: fault, Breaks: breaks, Store: Right, Spoil: spoil}
}

func leak(name, found string, spoil func(driver.Store) driver.Store) Defect {
	return Defect{Name: name, Fault: "f01", Breaks: check.Lively, Check: found, Store: Right, Spoil: spoil}
}

func bug(b badstores.Bug) func() driver.Locks { return func() driver.Locks { return badstores.New(b) } }

func spoilt(spoil func(*memstore.Store) driver.Locks) func() driver.Locks {
	return func() driver.Locks { return spoil(memstore.New()) }
}

// limitBug has the bug in its limits and correct locks.
func limitBug(b badstores.Bug) func() driver.Locks {
	type rates = limits.Store
	type both struct {
		*badstores.Store
		rates
	}
	return func() driver.Locks { return both{badstores.New(""), badstores.NewLimits(b)} }
}
