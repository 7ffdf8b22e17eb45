package sqlitestore

import (
	"database/sql"

	"github.com/batonhq/baton/internal/sqlstore"
)

// sweeper walks through all keys, a page every few commits, so that a program with ever
// new keys leaves a small file, and no request waits for long. It begins at the first key
// that the program uses, so that many short-lived programs together reach all keys.
type sweeper struct {
	commits  int
	requests int
	after    []byte // the last swept key; nil before the first request
}

func (w *sweeper) startAt(key string) {
	if w.after == nil {
		w.after = []byte(key)
	}
}

func (w *sweeper) count(requests int) {
	w.commits++
	w.requests += requests
}

// sweep removes the rows of keys that were not used for a while. It raises the floor in
// the same transaction. Every transaction that draws a ticket reads the floor, so no
// ticket is drawn twice, at any wall clock time.
func (s *Store) sweep(requests int) error {
	w := &s.sweeper
	w.count(requests)
	if w.commits < s.opts.sweepGap {
		return nil
	}
	page := 64 + 2*w.requests // faster than keys can be made
	w.commits, w.requests = 0, 0

	s.tx.now = s.opts.clock()
	old := s.tx.now - s.opts.sweepAge.Microseconds()
	w.startAt("")
	return inPages(&w.after, page, func(from []byte, n int) ([]byte, int, error) { return s.sweepPage(from, n, old) })
}

// inPages calls sweep for n rows after *after, and wraps around after the last key. sweep
// returns where it ended, and the number of rows.
func inPages(after *[]byte, n int, sweep func(from []byte, n int) (upTo []byte, seen int, err error)) error {
	for {
		from := *after
		upTo, seen, err := sweep(from, n)
		if err != nil {
			return err
		}
		if *after = upTo; seen == n {
			return nil
		}
		*after = []byte{} // wrap around
		if n -= seen; len(from) == 0 {
			return nil
		}
	}
}

// sweepPage removes those of the n keys after from that were not used since old.
func (s *Store) sweepPage(from []byte, n int, old int64) (upTo []byte, seen int, err error) {
	var busy, idle int
	if err := s.row(stSweepPage, from, n, old).Scan(&upTo, &seen, &busy, &idle); err != nil {
		return nil, 0, err
	}
	if busy > 0 {
		// If a key has only expired claims, Serve frees it.
		var keys []string
		err := s.tx.each(stSweepBusy, func(row *sql.Rows) error {
			var key []byte
			err := row.Scan(&key)
			keys = append(keys, string(key))
			return err
		}, from, upTo, old)
		if err != nil {
			return nil, 0, err
		}
		for _, key := range keys {
			if err := sqlstore.Serve(&s.tx, key, &s.tx.fx); err != nil {
				return nil, 0, err
			}
		}
	}
	if busy+idle > 0 {
		if err = s.exec(stSweepFloor, from, upTo, old); err == nil {
			err = s.exec(stSweep, from, upTo, old)
		}
	}
	return upTo, seen, err
}
