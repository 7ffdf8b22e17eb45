package pgstore

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// sweeper removes the rows of keys that were not used for a while, a page at a time.
// Every process with requests does its share, and skips rows that another one has locked.
type sweeper struct {
	store    *Store
	idle     time.Duration
	every    time.Duration
	early    bool         // also at once, for short-lived programs
	requests atomic.Int64 // since the last page

	started atomic.Bool
	quit    chan struct{}
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
}

func (w *sweeper) init(s *Store, o options) {
	w.store, w.idle, w.every, w.early = s, o.idle, o.sweep, o.early
	w.quit = make(chan struct{})
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.done = make(chan struct{})
}

// used notes a key that may be new. The sweep begins at the first one, so that many
// short-lived programs together reach all keys.
func (w *sweeper) used(key string) {
	w.requests.Add(1)
	if !w.started.Load() && !w.started.Swap(true) {
		go w.run([]byte(key))
	}
}

// close waits briefly for a page that is under way.
func (w *sweeper) close(patience time.Duration) {
	close(w.quit)
	defer time.AfterFunc(patience, w.cancel).Stop()
	if w.started.Swap(true) {
		<-w.done
	}
	w.cancel()
}

func (w *sweeper) run(after []byte) {
	defer close(w.done)
	if w.early {
		after, _ = w.around(after)
	}
	pause := w.every / 20
	for {
		select {
		case <-w.quit:
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = w.every
		if w.requests.Load() == 0 && len(after) == 0 {
			continue // no requests since the last round
		}
		upto, removed := w.around(after)
		if after = upto; removed > 0 && len(after) > 0 {
			pause = w.every / 20
		}
	}
}

// around sweeps one page, and after the last page the first. A failed page is repeated.
func (w *sweeper) around(after []byte) (upto []byte, removed int) {
	n := int(min(1000+2*w.requests.Swap(0), 20_000))
	upto, removed, err := w.page(after, n)
	if err == nil && len(upto) == 0 && len(after) > 0 {
		upto, removed, err = w.page(nil, n)
	}
	if err != nil {
		return after, 0
	}
	return upto, removed
}

// page sweeps one page and returns its end, nil at the end of all keys.
func (w *sweeper) page(after []byte, n int) (upto []byte, removed int, err error) {
	const sql = `SELECT upto, removed, granted_keys, granted FROM baton_sweep_1($1::bytea, $2::int, $3::bigint)`
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	var keys [][]byte
	var granted []string
	err = w.store.row(ctx, sql, []any{append([]byte{}, after...), int32(n), w.idle.Microseconds()}, &upto, &removed, &keys, &granted)
	if err != nil {
		return nil, 0, err
	}
	for i, key := range keys {
		w.store.hints.tell(string(key), granted[i], "")
	}
	if upto == nil {
		upto = []byte{}
	}
	return upto, removed, nil
}
