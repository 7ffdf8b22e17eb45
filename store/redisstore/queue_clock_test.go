package redisstore

import (
	"strconv"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// While the counter is ahead of a clock that was set back, waiters that died block the
// queue for no longer than otherwise.
func TestDeadWaiterThroughAClockSetBack(t *testing.T) {
	for _, pace := range []time.Duration{100 * time.Millisecond, driver.RefreshEvery} {
		t.Run(pace.String(), func(t *testing.T) {
			l := newLab(t, 1)
			n := l.names(l.key)
			s := l.stores[0]
			reader := func(owner string) driver.Claim {
				c := claimOf(l.key, owner)
				c.Weight = 1
				return c
			}
			const back = time.Hour
			ahead := time.Now().Add(back).UnixMicro()
			l.do("SET", n.counter, strconv.FormatInt(ahead, 10), "PX", strconv.FormatInt(back.Milliseconds()+140, 10))
			l.do("SET", n.high, strconv.FormatInt((ahead>>17+1)<<17, 10))
			take(t, s, reader("r1"), time.Minute, false)
			_, dead := take(t, s, claimOf(l.key, "dead"), time.Minute, true)
			r2, g := take(t, s, reader("r2"), time.Minute, true)
			if !g.Waiting {
				t.Fatal("overtook a waiter")
			}
			began := time.Now()
			tick := time.NewTicker(pace) // as waiters do
			defer tick.Stop()
			last := g.Ticket
			for {
				<-tick.C
				high, _ := strconv.ParseInt(l.do("GET", n.high), 10, 64)
				counter, _ := strconv.ParseInt(l.do("GET", n.counter), 10, 64) // 0 if gone
				if high <= last || counter >= high {
					t.Fatalf("counter %d, mark %d, drawn was %d", counter, high, last)
				}
				r := renewOne(t, s, r2, time.Minute)
				took := time.Since(began)
				if r.State == driver.Held {
					if took < driver.WaiterTTL-pace || r.Grant.Token < dead.Ticket+driver.WaiterTTL.Microseconds() {
						t.Errorf("held after %v, token %d µs above the ticket in front, which lives for %v", took, r.Grant.Token-dead.Ticket, driver.WaiterTTL)
					}
					break
				}
				if limit := driver.WaiterTTL + 2*time.Second; r.State != driver.Waiting || took > limit {
					t.Fatalf("%v after %v behind one that is dead, want held within %v", r.State, took, limit)
				}
				last = max(last, counter)
			}
		})
	}
}
