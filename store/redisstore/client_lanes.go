package redisstore

import (
	"context"
	"sync/atomic"

	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// lanes decide which calls of Open's client run on their callers' goroutines. That
// spares a goroutine for each call, but rueidis obeys a context only while it waits for
// an answer: not while another call connects, and not while the 1024 slots for
// requests to a server are taken. So calls run there only while no trouble is known, and
// only as many as cannot fill these slots when their callers give up.
//
// Without Cluster there is one lane. In Cluster there are several, each for
// neighbouring slots, which mostly have one server.
type lanes struct{ all []*lane }

type lane struct {
	order  wire.Order
	most   int32        // how many calls may run on their callers' goroutines
	flying atomic.Int32 // such calls

	// troubles counts what may make a call hang: a connection was made or lost, or an
	// answer did not come in time. over is how many of them came before a call that was
	// answered.
	troubles, over atomic.Uint64
}

const (
	laneCalls = 256

	// clusterLanes is how many lanes there are in Cluster, and clusterCalls
	// what each of them carries.
	clusterLanes = 64
	clusterCalls = 16
)

func newLanes(cluster bool) *lanes {
	n, most := 1, laneCalls
	if cluster {
		n, most = clusterLanes, clusterCalls
	}
	ls := &lanes{}
	for range n {
		ls.all = append(ls.all, &lane{most: int32(most), order: wire.Order{Slots: make(chan struct{}, most)}})
	}
	return ls
}

func (ls *lanes) of(call wire.Call) *lane {
	if len(ls.all) == 1 {
		return ls.all[0]
	}
	return ls.all[int(slot(call.Keys[0]))*len(ls.all)/slots]
}

// trouble makes the calls that follow run on goroutines of their own, until one of them
// is answered.
func (ls *lanes) trouble() {
	for _, l := range ls.all {
		l.troubles.Add(1)
	}
}

// run runs f for a call: on this goroutine with a context that ends when ctx does,
// or on another one with a context that does not.
func (l *lane) run(ctx context.Context, call wire.Call, f func(context.Context) wire.Result) wire.Result {
	if err := ctx.Err(); err != nil {
		return wire.Result{Err: wire.NotSent(err)}
	}
	if l.begins() {
		a := f(undate(ctx))
		l.flying.Add(-1)
		if !wire.Answered(a.Err) {
			l.troubles.Add(1)
		}
		return a
	}
	return l.order.Run(ctx, call, func() wire.Result {
		troubles := l.troubles.Load()
		a := f(context.WithoutCancel(ctx))
		if wire.Answered(a.Err) {
			l.settle(troubles)
		}
		return a
	})
}

// begins reports whether a call may run on its caller's goroutine, and then counts it
// in flying.
func (l *lane) begins() bool {
	if l.calm() {
		if l.flying.Add(1) <= l.most {
			return true
		}
		l.flying.Add(-1)
	}
	return false
}

// calm reports whether nothing is known that may make a call hang, and no call that
// was abandoned may be under way.
func (l *lane) calm() bool { return l.troubles.Load() == l.over.Load() && !l.order.Late() }

// settle notes that this number of troubles is over.
func (l *lane) settle(troubles uint64) {
	for {
		over := l.over.Load()
		if over >= troubles || l.over.CompareAndSwap(over, troubles) {
			return
		}
	}
}
