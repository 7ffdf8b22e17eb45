package verify

import (
	"context"
	"encoding/json"
	"fmt"
	"sync/atomic"

	"github.com/batonhq/baton"
)

// accounts count the Events of a client's Locker, so that the client can check them: every
// wait has one end, and every acquired lease is lost or released once.
type accounts struct {
	waiting, waited          atomic.Int64 // calls that began to wait, and that ended their wait
	acquired, lost, released atomic.Int64
}

func (a *accounts) events() *baton.Events {
	ended := func(e baton.LockEvent) {
		if e.Queued {
			a.waited.Add(1)
		}
	}
	return &baton.Events{
		Waiting:  func(context.Context, baton.LockEvent) { a.waiting.Add(1) },
		Acquired: func(_ context.Context, e baton.LockEvent) { ended(e); a.acquired.Add(1) },
		Failed:   func(_ context.Context, e baton.LockEvent) { ended(e) },
		Lost:     func(context.Context, baton.LockEvent) { a.lost.Add(1) },
		Released: func(context.Context, baton.LockEvent) { a.released.Add(1) },
	}
}

// wrong describes a contradiction in a client that neither waits for a lock nor holds one.
func (a *accounts) wrong() string {
	if begun, ended := a.waiting.Load(), a.waited.Load(); begun != ended {
		return fmt.Sprintf("the events of %d waits that began, and of %d that ended", begun, ended)
	}
	if acquired, lost, released := a.acquired.Load(), a.lost.Load(), a.released.Load(); acquired != lost+released {
		return fmt.Sprintf("the events of %d leases acquired, of %d lost, and of %d released", acquired, lost, released)
	}
	return ""
}

// Told counts the locks in the events of clients. For each client Waited is the number of
// ended waits, and Acquired is Released plus Lost.
type Told struct {
	Waited   int64 `json:"waited"`
	Acquired int64 `json:"acquired"`
	Released int64 `json:"released"`
	Lost     int64 `json:"lost"`
}

func (a *accounts) told() Told {
	return Told{Waited: a.waited.Load(), Acquired: a.acquired.Load(), Released: a.released.Load(), Lost: a.lost.Load()}
}

// String is what add reads.
func (t Told) String() string {
	text, _ := json.Marshal(t) // numbers are always encodable
	return string(text)
}

// add adds the counts of a client.
func (t *Told) add(text string) error {
	var more Told
	if err := json.Unmarshal([]byte(text), &more); err != nil {
		return err
	}
	t.Waited += more.Waited
	t.Acquired += more.Acquired
	t.Released += more.Released
	t.Lost += more.Lost
	return nil
}
