package verify

import (
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// stalls measures whether the machine lets this process run when it is runnable.
type stalls struct {
	stop chan struct{}
	done chan struct{}
	once sync.Once
	seen []stall

	moments []moment // one after another
}

// A moment is a short part of the time that was watched.
type moment struct {
	to     int64         // its end; it began at the end of the previous one
	long   time.Duration // its length
	waited time.Duration // the part in which this process was runnable and did not run
}

type stall struct {
	at   int64 // its end
	late time.Duration
}

const tick = 5 * time.Millisecond

// aMoment is the shortest length of a moment.
const aMoment = 100 * time.Millisecond

// notable is the shortest stall that is recorded.
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
			s.see(now, history.Duration(last, now), late)
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

func (s *stalls) see(now int64, long, late time.Duration) {
	n := len(s.moments) - 1
	if n < 0 || s.moments[n].long >= aMoment {
		s.moments = append(s.moments, moment{})
		n++
	}
	m := &s.moments[n]
	m.to, m.long, m.waited = now, m.long+long, m.waited+late
}

// busy is the share of the time between two instants in which this process was runnable and
// did not run; 0 if that time was not measured.
func (s *stalls) busy(from, to int64) float64 {
	var waited, long time.Duration
	for _, m := range s.moments {
		if m.to > from && m.to-int64(m.long) < to {
			waited, long = waited+m.waited, long+m.long
		}
	}
	if long == 0 {
		return 0
	}
	return float64(waited) / float64(long)
}

// worst returns the longest stall outside of faults.
func (s *stalls) worst(marks []history.Mark) (worst time.Duration) {
	for _, x := range s.seen {
		if !broken(marks, x.at-int64(x.late), x.at) {
			worst = max(worst, x.late)
		}
	}
	return worst
}

// broken reports whether a fault was present at some instant between two.
func broken(marks []history.Mark, from, to int64) bool {
	return slices.ContainsFunc(history.Episodes(marks), func(e history.Episode) bool { return e.From <= to && e.To >= from })
}
