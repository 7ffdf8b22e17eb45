package mysqlstore

import (
	"context"
	"database/sql"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

const (
	// A key is polled in these periods, longer the longer nothing has happened: after a
	// wait of t every t/pollShare.
	minPoll   = time.Millisecond
	maxPoll   = 50 * time.Millisecond
	pollShare = 16

	// pollLoad bounds the share of the time in which a poll is under way.
	pollLoad = 4
)

// poller looks for grants of other processes. It asks only for this process's first
// position of each key: the store grants no later one before.
type poller struct {
	kick  chan struct{}
	dirty atomic.Bool
}

func (p *poller) changed(_, waiting int) {
	p.dirty.Store(true)
	if waiting > 0 {
		select {
		case p.kick <- struct{}{}:
		default:
		}
	}
}

// front is the first position of this process for one key.
type front struct {
	sqlstore.Position
	since time.Time // since when it is the first
	due   time.Time
}

func (f *front) pace(now time.Time) time.Duration {
	return min(max(now.Sub(f.since)/pollShare, minPoll), maxPoll)
}

func (s *Store) poll() {
	fronts := make(map[string]*front)
	timer := time.NewTimer(time.Hour)
	defer timer.Stop()
	for {
		now := time.Now()
		if s.poller.dirty.Swap(false) {
			s.refront(fronts, now)
		}
		next := time.Hour
		for _, f := range fronts {
			next = min(next, f.due.Sub(now))
		}
		if next > 0 {
			timer.Reset(next)
			select {
			case <-s.quit:
				return
			case <-s.poller.kick:
			case <-timer.C:
			}
			continue
		}
		var due []*front
		for _, f := range fronts {
			if f.due.Sub(now) <= minPoll/2 {
				due = append(due, f)
			}
		}
		for list := range chunks(due, func(f *front) string { return f.Key }) {
			s.pollOnce(list)
		}
		took := time.Since(now)
		now = now.Add(took)
		for _, f := range due {
			f.due = now.Add(max(f.pace(now), pollLoad*took))
		}
		select {
		case <-s.quit:
			return
		default:
		}
	}
}

// refront finds the first position of each key.
func (s *Store) refront(fronts map[string]*front, now time.Time) {
	first := make(map[string]sqlstore.Position)
	for _, p := range s.watchers.Positions() {
		if old, ok := first[p.Key]; !ok || p.Seq < old.Seq {
			first[p.Key] = p
		}
	}
	for key, f := range fronts {
		if p, ok := first[key]; !ok {
			delete(fronts, key)
		} else if p != f.Position {
			f.Position, f.since, f.due = p, now, now
		}
	}
	for key, p := range first {
		if fronts[key] == nil {
			fronts[key] = &front{p, now, now.Add(minPoll)}
		}
	}
}

// pollOnce asks which positions were granted. After a failure the next poll asks again.
func (s *Store) pollOnce(fronts []*front) {
	var asked pairs
	for _, f := range fronts {
		asked.add(f.Key, f.Seq)
	}
	ctx, cancel := context.WithTimeout(s.life, time.Second)
	defer cancel()
	rows, err := s.single.QueryContext(ctx, "SELECT k,id,seq,ttl FROM baton_claim WHERE "+asked.are()+" AND held=1 AND ends>UTC_TIMESTAMP(6)")
	if err != nil {
		return
	}
	defer rows.Close()
	for rows.Next() {
		var g sqlstore.Granted
		var ttl int64
		var key sql.RawBytes
		if rows.Scan(&key, &g.ID, &g.Token, &ttl) != nil {
			return
		}
		g.Key, g.TTL = string(key), time.Duration(sqlstore.ClaimTime(ttl))*time.Microsecond
		s.watchers.Deliver(g.Key, g.ID, g.Hint())
	}
}

// Watch implements driver.Watcher. Within the process a hint is a call. Changes by other
// processes are found by polling, every millisecond while the lock changes holders, and
// less and less often while nothing happens.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	s.warm.Do(func() {
		// A grant may need a renewal within a second, and a connection takes several
		// round trips.
		go func() { _ = s.apart.PingContext(s.life) }()
	})
	return s.watchers.Watch(c, wake)
}
