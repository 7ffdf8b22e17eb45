package pgstore

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"
)

// sweeper removes the rows of keys that nobody has used for a while, a page at
// a time. Every process that makes requests does its share; rows that another
// one is at are skipped.
type sweeper struct {
	store    *Store
	idle     time.Duration
	every    time.Duration
	requests atomic.Int64 // since the last page

	started atomic.Bool
	ctx     context.Context
	cancel  context.CancelFunc
	done    chan struct{}
}

func (w *sweeper) init(s *Store, o options) {
	w.store, w.idle, w.every = s, o.idle, o.sweep
	w.ctx, w.cancel = context.WithCancel(context.Background())
	w.done = make(chan struct{})
}

// used notes that a key may have been made.
func (w *sweeper) used() {
	w.requests.Add(1)
	if !w.started.Load() && !w.started.Swap(true) {
		go w.run()
	}
}

func (w *sweeper) close() {
	w.cancel()
	if w.started.Swap(true) {
		<-w.done
	}
}

func (w *sweeper) run() {
	defer close(w.done)
	pause := w.every / 20 // programs that run for a moment sweep, too
	for after := []byte{}; ; {
		select {
		case <-w.ctx.Done():
			return
		case <-time.After(pause/2 + rand.N(pause)):
		}
		pause = w.every
		requests := w.requests.Swap(0)
		if requests == 0 && len(after) == 0 {
			continue // nothing new since the last round
		}
		upto, removed, err := w.page(after, int(min(1000+2*requests, 20_000)))
		if err != nil {
			continue
		}
		if after = upto; removed > 0 && len(after) > 0 {
			pause = w.every / 20
		}
	}
}

// page sweeps one page and returns where it ended, or nothing at the end of
// all keys.
func (w *sweeper) page(after []byte, n int) (upto []byte, removed int, err error) {
	const sql = `SELECT upto, removed, granted_keys, granted FROM baton_sweep_1($1::bytea, $2::int, $3::bigint)`
	ctx, cancel := context.WithTimeout(w.ctx, 10*time.Second)
	defer cancel()
	var keys [][]byte
	var granted []string
	err = w.store.row(ctx, sql, []any{after, int32(n), w.idle.Microseconds()}, &upto, &removed, &keys, &granted)
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
