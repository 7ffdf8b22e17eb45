// Package deploy starts the private servers that a verification breaks: of every
// kind of store, each client behind proxies of its own.
package deploy

import (
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
)

// A Server can be broken as a machine breaks. It starts again with what it has
// kept on its disk.
type Server interface {
	Pid() int
	Kill()
	Stop()
	Cont()
	Restart()
}

// A Deployment is the servers of one store. Its methods are safe for concurrent
// use unless they break something; what breaks is for one goroutine.
type Deployment struct {
	Kind    string   // as in "--local KIND"
	Servers []Server // none for kinds without: sqlite, memory

	// URL is what a client opens, with its own proxies before every server.
	URL func(client int) string
	// Proxies are those of one client, in the order of Servers.
	Proxies func(client int) []*faultproxy.Proxy

	// Of these, nil is what the kind does not have.
	Leader   func() (server int, err error)        // who leads just now
	Isolate  func(server int, on bool) error       // cut it from the other servers, and back
	SetClock func(offset time.Duration)            // of all servers, at once
	Wipe     func(prefix string) error             // an administrator deletes the locks
	Scripts  func() error                          // forget the scripts that clients have loaded
	FillDisk func() (free func() error, err error) // until there is no room
	Keys     func(prefix string) (int, error)      // how much is kept, for leaks
}
