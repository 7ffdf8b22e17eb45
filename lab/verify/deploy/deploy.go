// Package deploy starts the private servers that a verification breaks, for every kind of store,
// with separate proxies in front of them for each client.
package deploy

import (
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// MaxTTL is the longest TTL of a deployment by default; LongestTTL is the longest possible one.
const (
	MaxTTL     = 3 * time.Second
	LongestTTL = 15 * time.Second
)

// A Server can be broken like a machine. It starts again with the data on its disk.
type Server interface {
	Pid() int
	Kill()          // a crash
	Stop() error    // it hangs: no connection is closed, and no request is answered
	Cont() error    // it continues
	Restart() error // ends it as Kill does, and returns when it serves again
}

// A Deployment is the servers of one store. Its methods are safe for concurrent use, except those
// that break something: only one goroutine may call those.
type Deployment struct {
	Kind    string   // as in "--local KIND"
	Servers []Server // none for kinds without servers: sqlite, memory

	// URL is the URL for a client, through its own proxies in front of every server.
	URL func(client int) string
	// Direct is the URL past the proxies; "" if no other process sees the locks.
	Direct string
	// Proxies are the proxies of one client, in the order of Servers. There are none if the
	// client does not use TCP.
	Proxies func(client int) []*faultproxy.Proxy

	// Keys counts the servers' keys, to find leaks.
	Keys func() (int, error)
	// Held names the servers' keys of locks, as an administrator sees them. It is empty after
	// all clients have closed and the claims that they did not release have expired. It leaves
	// out what the store may keep for a while: expired rows, counters of tokens, queues without
	// live waiters, the parent nodes of locks.
	Held func() ([]string, error)
	// Wipe deletes the locks, or everything, as an administrator would.
	Wipe func(everything bool) error
	// Snapshot copies the servers' disks. It crashes the servers, and restore, which puts the
	// copy back, crashes them again. There is one copy: the next Snapshot replaces it.
	Snapshot func() (restore func() error, err error)

	// Quorum is true if a majority of the servers decides, and its decisions survive a restart
	// of all.
	Quorum bool
	// Settled returns nil when all servers work together as at the start.
	Settled func() error

	// A nil func means that the kind, or this machine, cannot do it.
	Leader   func() (server int, err error)                    // the present leader
	Elect    func(on bool) error                               // whether another server takes over as soon as the leader is silent; nil if it always does
	Isolate  func(server int, on bool) error                   // cut it from the other servers, and reconnect it
	Shift    func(server int, by time.Duration) error          // make its wall clock jump
	Stall    func(server int) (resume func() error, err error) // its writes do not reach its disk, and it waits for them
	Mute     func() (restore func() error, err error)          // forbid what wakes waiters
	FillDisk func(server int) (free func() error, err error)   // until it is full
	Scripts  func() error                                      // forget the scripts that clients have loaded
	Deafen   func() error                                      // end the connections that wake waiters
	Reshape  func(server int) (back func() error, err error)   // move its data to the other servers, or end its membership

	site *testserver.Site
}

// Close ends the servers. It may be called repeatedly.
func (d *Deployment) Close() { d.site.Close() }

// A Kind is a store with its servers.
type Kind struct {
	Name string // as in "--local NAME"
	Does string // one line for people

	// bound plus ttls times the longest TTL is how long, beyond the TTL, a waiter may wait
	// without a fault.
	bound time.Duration
	ttls  time.Duration

	need func(testserver.TB)
	open func(*builder)
}

// Bound is how long, beyond its TTL, a waiter may wait without a fault, in a deployment for TTLs up
// to ttl.
func (k Kind) Bound(ttl time.Duration) time.Duration { return k.bound + k.ttls*max(ttl, MaxTTL) }

// Need skips a test if a server of the kind is not installed.
func (k Kind) Need(tb testserver.TB) {
	tb.Helper()
	if k.need != nil {
		k.need(tb)
	}
}

// Kinds are all kinds of store.
var Kinds = []Kind{
	{"redis", "a Redis that writes everything to its disk", 2 * time.Second, 0, testserver.NeedRedis, (*builder).redis},
	{"redis-nopersist", "a Redis that forgets everything when it restarts", 2 * time.Second, 0, testserver.NeedRedis, (*builder).redisForgetful},
	{"sentinel", "a Redis with a replica, and a Sentinel that promotes it", 5 * time.Second, 0, testserver.NeedRedis, (*builder).sentinel},
	{"cluster", "a Redis Cluster of three primaries", 3 * time.Second, 0, testserver.NeedRedis, (*builder).cluster},
	{"redlock5", "five Redis that know nothing of each other", 2 * time.Second, 1, testserver.NeedRedis, (*builder).redlock},
	{"mariadb", "a MariaDB", 2 * time.Second, 0, testserver.NeedMariaDB, (*builder).mariadb},
	{"postgres", "a PostgreSQL", 2 * time.Second, 0, testserver.NeedPostgres, (*builder).postgres},
	{"zookeeper3", "three ZooKeepers", 2 * time.Second, sessionTTLs, testserver.NeedZooKeeper, (*builder).zookeeper},
	{"etcd", "an etcd", 2 * time.Second, 0, testserver.NeedEtcd, (*builder).etcd},
	{"etcd3", "three etcds", 3 * time.Second, 0, testserver.NeedEtcd, (*builder).etcd3},
	{"sqlite", "a file", time.Second, 0, nil, (*builder).sqlite},
	{"memory", "the memory of one client", time.Second, 0, nil, (*builder).memory},
}

// Find returns the kind with that name.
func Find(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Kind{}, fmt.Errorf("there is no kind of store %q, only %s", name, strings.Join(names, ", "))
}

// ErrNotInstalled says that a server is not on this machine.
var ErrNotInstalled = testserver.ErrNotInstalled

// Options say what a deployment must support.
type Options struct {
	Clients int // numbered from 0; each has its own proxies

	// TTL is the longest TTL of the clients. Defaults to MaxTTL, and is never less.
	TTL time.Duration

	// Clocks makes adjustable clocks, by a library in the servers that allocates memory at
	// every reading of the time. That is not safe in a signal handler: PostgreSQL has aborted
	// with it.
	Clocks bool

	// Disks makes stallable disks, by a library that makes the servers ask before each fsync.
	Disks bool
}

// Open starts the servers of a kind, and proxies for its clients. If a server is not installed, the
// error is an ErrNotInstalled with its package.
func Open(kind string, o Options) (*Deployment, error) {
	k, err := Find(kind)
	if err != nil {
		return nil, err
	}
	if o.TTL = max(o.TTL, MaxTTL); o.TTL > LongestTTL {
		return nil, fmt.Errorf("start %s: a TTL of %v is more than %v", kind, o.TTL, LongestTTL)
	}
	site := &testserver.Site{Stalls: o.Disks && k.Name != "sqlite" && k.Name != "memory"}
	d := &Deployment{Kind: kind, site: site, Proxies: func(int) []*faultproxy.Proxy { return nil }, Settled: func() error { return nil }}
	err = site.Try(func() { k.open(&builder{Site: site, Options: o, Deployment: d}) })
	if err != nil {
		site.Close()
		return nil, fmt.Errorf("start %s: %w", kind, err)
	}
	return d, nil
}

// Start is Open for tests: it skips the test if a server is not installed, and closes the deployment
// at the test's end.
func Start(tb testserver.TB, kind string, clients int) *Deployment {
	tb.Helper()
	if k, err := Find(kind); err == nil {
		k.Need(tb)
	}
	d, err := Open(kind, Options{Clients: clients, Clocks: true})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(d.Close)
	return d
}
