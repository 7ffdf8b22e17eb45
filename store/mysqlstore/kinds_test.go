package mysqlstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// A holder is moved to another ID in the transaction in which another request walks the
// queue: it still comes before the waiters, few of them or many.
func TestMovedHolderIsStillTheFirst(t *testing.T) {
	t.Parallel()
	d := shared(t)
	s := d.openWith(t, patient)
	for _, waiters := range []int{1, 40} {
		key := fmt.Sprint("k", waiters)
		first, _ := take(t, s, claimOf(key, "first"), time.Minute, false)
		h, _ := take(t, s, claimOf(key, "h"), time.Minute, true)
		for range waiters {
			take(t, s, claimOf(key, "w"), time.Minute, true)
			// No position ends meanwhile, however slow the machine is.
			d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)+INTERVAL 1 HOUR WHERE k=?", key)
		}
		mustRelease(t, s, first)
		if r := renewOne(t, s, h, time.Minute); r.State != driver.Held {
			t.Fatalf("the next waiter: %+v", r)
		}

		gate, inside := make(chan bool), make(chan bool)
		var wg sync.WaitGroup
		do := func(what string, run func(*tx) error) {
			wg.Go(func() {
				if err := s.do(context.Background(), key, false, run); err != nil {
					t.Errorf("%s: %v", what, err)
				}
			})
		}
		queued := func(n int) {
			eventually(t, fmt.Sprintf("%d requests share the next transaction", n), 10*time.Second, func() bool {
				s.mu.Lock()
				defer s.mu.Unlock()
				return s.queues[key].Waiting() == n
			})
		}
		do("the transaction under way", func(*tx) error {
			close(inside)
			<-gate
			return nil
		})
		<-inside
		moved := driver.NewID()
		wg.Go(func() {
			if _, err := s.Move(context.Background(), h, moved, "moved", time.Minute); err != nil {
				t.Errorf("move: %v", err)
			}
		})
		queued(1)
		do("serve", func(t *tx) error { return sqlstore.Serve(t, key, &t.fx) })
		queued(2)
		close(gate)
		wg.Wait()

		info, err := s.Inspect(t.Context(), key)
		if err != nil || len(info.Holders) != 1 || info.Holders[0].Owner != "moved" {
			t.Errorf("%d wait: the holders are %+v, %v", waiters, info.Holders, err)
		}
		h.ID = moved
		mustRelease(t, s, h)
		if info, err := s.Inspect(t.Context(), key); err != nil || len(info.Holders) != 1 {
			t.Errorf("%d waited: then the holders are %+v, %v", waiters, info.Holders, err)
		}
	}
}
