package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// List finds what is held and what is only waited for, through prefixes that
// mean something to SCAN, on all servers.
func TestList(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	single := testserver.Redis(t)
	for name, client := range map[string]redis.UniversalClient{
		"single":  dial(t, single.Addr),
		"Cluster": dialCluster(t, cluster),
	} {
		prefix := "li*st[a]?" + driver.NewID() + ":"
		s := mustNew(t, client, Config{Prefix: prefix})
		other := mustNew(t, client, Config{Prefix: "li-other-sta?" + driver.NewID() + ":"})
		take(t, other, claimOf("a/x", "other"), time.Minute, false)
		want := []string{}
		for i := range 50 {
			key := fmt.Sprintf("a/%d", i)
			if i%7 == 0 {
				key = fmt.Sprintf("a/}%d{", i)
			}
			c := claimOf(key, "a")
			if i%3 == 0 {
				c.Weight = 1
			}
			take(t, s, c, time.Minute, false)
			want = append(want, key)
		}
		take(t, s, claimOf("b", "a"), time.Minute, false)
		// A queue whose lock is gone.
		take(t, s, claimOf("a/50", "b"), time.Minute, true)
		plain(t, s, "DEL", prefix+"a/1")
		take(t, s, claimOf("a/2", "b"), time.Minute, true)
		plain(t, s, "DEL", prefix+"a/2")
		plain(t, s, "SET", prefix+"a/not", "a lock")
		want = slices.DeleteFunc(want, func(k string) bool { return k == "a/1" })
		want = append(want, "a/50")

		var got []string
		for info, err := range s.List(t.Context(), "a/") {
			if err != nil {
				t.Fatalf("%s: %v", name, err)
			}
			if len(info.Holders)+len(info.Waiters) != 1 {
				t.Errorf("%s: %+v", name, info)
			}
			got = append(got, info.Key)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("%s: listed %q, want %q", name, got, want)
		}
		n := 0
		for range s.List(t.Context(), "") {
			if n++; n == 3 {
				break
			}
		}
		if n != 3 {
			t.Errorf("%s: stopped after 3, saw %d", name, n)
		}
	}
}

// The holder of a lock that is broken is told so, though the lock does not say which
// process that is.
func TestBreakTellsTheHolder(t *testing.T) {
	l := newLab(t, 2)
	l.awaitSubscribed(l.stores...)
	for _, weight := range []int64{driver.Whole, 1} {
		c := claimOf(l.key, "a")
		c.Weight = weight
		hints := l.hints(l.stores[0], c)
		c, _ = take(t, l.stores[0], c, time.Minute, false)
		if n, err := l.stores[1].Break(t.Context(), l.key); n != 1 || err != nil {
			t.Fatalf("broke %d holders: %v", n, err)
		}
		select {
		case h := <-hints:
			if h.Granted {
				t.Errorf("the hint tells of a grant: %+v", h)
			}
		case <-time.After(5 * time.Second):
			t.Error("the holder was not told")
		}
		if r := renewOne(t, l.stores[0], c, time.Minute); r.State != driver.Lost {
			t.Errorf("broken, and %v", r.State)
		}
	}
}
