package verify

import (
	"math"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/verify/history"
)

// stalls looks whether the machine lets this process run when it wants to.
type stalls struct {
	stop chan struct{}
	done chan struct{}
	once sync.Once
	seen []stall

	waited, watched time.Duration // how late it was in all, and during which time
}

type stall struct {
	at   int64 // its end
	late time.Duration
}

const tick = 5 * time.Millisecond

// notable are stalls that are worth remembering.
const notable = 20 * time.Millisecond

func (s *stalls) watch() {
	s.stop, s.done = make(chan struct{}), make(chan struct{})
	go func() {
		defer close(s.done)
		last := history.Now()
		t := time.NewTicker(tick)
		defer t.Stop()
		for {
			select {
			case <-s.stop:
				return
			case <-t.C:
			}
			now := history.Now()
			late := max(0, history.Duration(last, now)-tick)
			s.waited, s.watched = s.waited+late, s.watched+history.Duration(last, now)
			if late > notable {
				s.seen = append(s.seen, stall{now, late})
			}
			last = now
		}
	}()
}

func (s *stalls) end() {
	s.once.Do(func() {
		close(s.stop)
		<-s.done
	})
}

// busy is the share of the time in which this process wanted to run and did not.
func (s *stalls) busy() float64 {
	if s.watched == 0 {
		return 0
	}
	return float64(s.waited) / float64(s.watched)
}

// worst returns the longest stall that no fault is to blame for.
func (s *stalls) worst(marks []history.Mark) (worst time.Duration) {
	for _, x := range s.seen {
		if !broken(marks, x.at-int64(x.late), x.at) {
			worst = max(worst, x.late)
		}
	}
	return worst
}

// broken reports whether a fault was there at some instant between two.
func broken(marks []history.Mark, from, to int64) bool {
	return slices.ContainsFunc(episodes(marks), func(e episode) bool { return e.from <= to && e.to >= from })
}

// An episode is a fault from when it set in until it was over.
type episode struct {
	from, to int64
	text     string
}

// episodes are those that marks tell of. Several may be there at once; one that
// was never over has no end.
func episodes(marks []history.Mark) (all []episode) {
	for _, m := range marks {
		switch m.What {
		case history.Breaks:
			all = append(all, episode{m.At, math.MaxInt64, m.Text})
		case history.Heals:
			if i := slices.IndexFunc(all, func(e episode) bool { return e.to == math.MaxInt64 && e.text == m.Text }); i >= 0 {
				all[i].to = m.At
			}
		}
	}
	return all
}
