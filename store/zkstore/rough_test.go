package zkstore

import (
	"crypto/rand"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

func TestRough(t *testing.T) {
	if os.Getenv("ROUGH") == "" {
		t.Skip()
	}
	server := testserver.ZooKeeper(t, "-Dzookeeper.forceSync=yes")
	rate := func(n int, f func(i int) error) float64 {
		var total atomic.Int64
		start := time.Now()
		var wg sync.WaitGroup
		for i := range n {
			wg.Go(func() {
				for time.Since(start) < time.Second {
					if err := f(i); err != nil {
						t.Error(err)
						return
					}
					total.Add(1)
				}
			})
		}
		wg.Wait()
		return float64(total.Load()) / time.Since(start).Seconds()
	}
	root := "/" + rand.Text()
	s := openOn(t, root, server.Addr)
	c := plain(t, server.Addr)
	r := writer("warm")
	hold(t, s, r)
	c.Create(root+"/raw", nil, 0, zk.WorldACL(31))
	raw := func(key string) error {
		p, err := c.Create(root+"/"+key+"/x-", nil, 3, zk.WorldACL(31))
		if err != nil {
			return err
		}
		return c.Delete(p, -1)
	}
	ours := func(s *Store, key string) error {
		r := writer(key)
		ch := make(chan driver.Hint, 4)
		stop := s.Watch(r.Claim, func(h driver.Hint) {
			select {
			case ch <- h:
			default:
			}
		})
		defer stop()
		g, err := s.Acquire(t.Context(), r)
		if err != nil {
			return err
		}
		for g.Waiting {
			select {
			case h := <-ch:
				if h.Granted {
					g = h.Grant
				}
			case <-time.After(400 * time.Millisecond):
				a := renew(t, s, r)
				if a.State == driver.Lost || a.State == driver.Unknown {
					return fmt.Errorf("%v %v", a.State, a.Err)
				}
				g = a.Grant
			}
		}
		return s.Release(t.Context(), r.Claim)
	}
	theirs := func(c *zk.Conn, key string) error {
		l := zk.NewLock(c, root+"/"+key, zk.WorldACL(31))
		if err := l.Lock(); err != nil {
			return err
		}
		return l.Unlock()
	}
	var stores []*Store
	var conns []*zk.Conn
	for range 64 {
		stores = append(stores, openOn(t, root, server.Addr))
		conns = append(conns, plain(t, server.Addr))
	}
	for i := range 64 {
		c.Create(fmt.Sprintf("%s/r%d", root, i), nil, 0, zk.WorldACL(31))
	}
	for rep := range 3 {
		fmt.Println("rep", rep)
		fmt.Printf("1 goroutine: raw %.0f  ours %.0f  new key %.0f zk.Lock %.0f\n", rate(1, func(int) error { return raw("raw") }), rate(1, func(int) error { return ours(s, "one") }),
			rate(1, func(int) error { return ours(s, rand.Text()) }), rate(1, func(int) error { return theirs(c, "lk") }))
		fmt.Printf("64 keys: raw %.0f ours %.0f zk.Lock %.0f\n", rate(64, func(i int) error { return raw(fmt.Sprint("r", i)) }), rate(64, func(i int) error { return ours(s, fmt.Sprint("o", i)) }), rate(64, func(i int) error { return theirs(c, fmt.Sprint("t", i)) }))
		for _, n := range []int{8, 64} {
			fmt.Printf("one key %d: one store %.0f, zk.Lock one conn %.0f; many stores %.0f, zk.Lock many %.0f\n", n, rate(n, func(int) error { return ours(s, "hot") }), rate(n, func(int) error { return theirs(c, "hott") }),
				rate(n, func(i int) error { return ours(stores[i], "hot2") }), rate(n, func(i int) error { return theirs(conns[i], "hott2") }))
		}
	}
}
