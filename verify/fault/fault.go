// Package fault breaks things on purpose: clients, the wires between them and
// the servers, and the servers.
package fault

import (
	"context"
	"math/rand/v2"
	"os"
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/verify/deploy"
	"github.com/batonhq/baton/verify/history"
)

// A Client is a process that works.
type Client interface {
	Signal(os.Signal) error
	Revive() error // start it anew, after it was killed
	Holds() bool   // whether it holds a lock, as far as its log says
}

// A Scene is what there is to break.
type Scene struct {
	Clients []Client
	Proxies func(client int) []*faultproxy.Proxy // none where the client talks to no server
	Servers *deploy.Deployment                   // nil if they are not ours to break
	TTL     time.Duration
	Rand    *rand.Rand // all chance comes from here
	Mark    func(history.MarkWhat, string)
}

// A Fault is one way to break a scene.
type Fault struct {
	ID   string // "f04"
	Name string // "pause"
	Does string // one line for people
	// Needs reports what the scene lacks for it, or "".
	Needs func(*Scene) string
	// Run breaks and heals: when it returns, also with an error, all is whole
	// again. It returns soon after ctx ends.
	Run func(context.Context, *Scene) error
}
