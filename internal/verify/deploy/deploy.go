// Package deploy starts the private servers that a verification breaks: of every
// kind of store, each client behind proxies of its own.
package deploy

import (
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// MaxTTL is the longest TTL that a deployment is made for if nobody asks for more,
// and LongestTTL the longest that can be asked for.
const (
	MaxTTL     = 3 * time.Second
	LongestTTL = 15 * time.Second
)

// A Server can be broken as a machine breaks. It starts again with what it has
// kept on its disk.
type Server interface {
	Pid() int
	Kill()          // a crash
	Stop() error    // it hangs: nothing is closed, and nobody answers
	Cont() error    // it goes on
	Restart() error // ends it as Kill does, and returns when it serves again
}

// A Deployment is the servers of one store. Its methods are safe for concurrent
// use unless they break something; what breaks is for one goroutine.
type Deployment struct {
	Kind    string   // as in "--local KIND"
	Servers []Server // none for kinds without: sqlite, memory

	// URL is what a client opens, with its own proxies before every server.
	URL func(client int) string
	// Direct is the same past the proxies; "" where nobody else sees the locks.
	Direct string
	// Proxies are those of one client, in the order of Servers. There are none
	// where the client talks to no server.
	Proxies func(client int) []*faultproxy.Proxy

	// Keys counts what is kept, for leaks.
	Keys func() (int, error)
	// Held names what the servers keep of locks, as an administrator sees it:
	// nothing when all clients have closed and what they did not give back has run
	// out. What the layout of the store leaves for a while is not among it: rows
	// that have run out, counters of tokens, lines in which nobody lives, the nodes
	// that locks stand below.
	Held func() ([]string, error)
	// Wipe is an administrator who deletes the locks, or everything.
	Wipe func(everything bool) error
	// Snapshot keeps what the servers have on their disks. They crash for it, and
	// once more for restore, which puts it back. There is one: the next takes its
	// place.
	Snapshot func() (restore func() error, err error)

	// Quorum is true if a majority of the servers decides, and what it has decided
	// survives the restart of all.
	Quorum bool
	// Settled is nil when all servers work together as they did in the beginning.
	Settled func() error

	// Of these, nil is what the kind does not have, or this machine.
	Leader   func() (server int, err error)                    // who leads just now
	Elect    func(on bool) error                               // whether another takes over as soon as the leader is not heard of; nil if always
	Isolate  func(server int, on bool) error                   // cut it from the other servers, and back
	Shift    func(server int, by time.Duration) error          // its wall clock jumps
	Stall    func(server int) (resume func() error, err error) // what it writes does not reach its disk, and it waits for that
	Mute     func() (restore func() error, err error)          // nobody may use what wakes those who wait
	FillDisk func(server int) (free func() error, err error)   // until there is no room
	Scripts  func() error                                      // forget the scripts that clients have loaded
	Deafen   func() error                                      // end whatever wakes those who wait
	Reshape  func(server int) (back func() error, err error)   // move its data to the others, or end its membership

	site *testserver.Site
}

// Close ends the servers. It may be called again.
func (d *Deployment) Close() { d.site.Close() }

// A Kind is a store with its servers.
type Kind struct {
	Name string // as in "--local NAME"
	Does string // one line for people

	// How long, beside the TTL, a waiter may wait when nothing is broken any more: so
	// long, and so many of the longest TTLs there can be.
	bound time.Duration
	ttls  time.Duration

	need func(testserver.TB)
	open func(*builder)
}

// Bound is how long, beside its TTL, a waiter may wait in a deployment for so long
// TTLs when nothing is broken any more.
func (k Kind) Bound(ttl time.Duration) time.Duration { return k.bound + k.ttls*max(ttl, MaxTTL) }

// Kinds are all there are.
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

// Find returns the kind of that name.
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

// Options say what a deployment is for.
type Options struct {
	Clients int // which count from 0; each has proxies of its own

	// TTL is the longest that anybody asks for. Defaults to MaxTTL, and is not less.
	TTL time.Duration

	// Clocks is for clocks that can be set. What lets them be is a library in the
	// servers that allocates memory whenever they look at the time, which is not
	// safe in a handler of signals: a PostgreSQL that had it was seen to abort.
	Clocks bool

	// Disks is for disks that can be stalled. What lets them be has the servers ask
	// before each fsync, and then does not write.
	Disks bool
}

// Open starts the servers of a kind, and proxies for its clients. A server that is
// not installed is an ErrNotInstalled that says what to install.
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

// Start is Open for tests, which are skipped if a server is not installed. What
// it starts ends with the test.
func Start(tb testserver.TB, kind string, clients int) *Deployment {
	tb.Helper()
	if k, err := Find(kind); err == nil && k.need != nil {
		k.need(tb)
	}
	d, err := Open(kind, Options{Clients: clients, Clocks: true})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(d.Close)
	return d
}
