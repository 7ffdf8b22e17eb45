package redisstore

import (
	"net"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// A connection serves for longer than a Sentinel's answer: to make one takes longer than a
// lease has to be renewed where the Sentinels are far away. A new primary of which no
// announcement is heard is found all the same.
func TestPrimaryThatIsNotAnnounced(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set, next := testserver.RedisSentinel(t), testserver.Redis(t)
	s, err := Open(t.Context(), Server{Addrs: []string{set.Sentinel.Addr}, Master: set.Name}, Config{Prefix: "announced"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	take(t, s, claimOf("first", "a"), time.Minute, false)
	made := s.links.born.connections.Load()
	for end := time.Now().Add(topologyFor + time.Second); time.Now().Before(end); {
		c, _ := take(t, s, claimOf("again", "a"), time.Minute, false)
		if err := s.Release(t.Context(), c); err != nil {
			t.Fatal(err)
		}
	}
	if now := s.links.born.connections.Load(); now != made {
		t.Errorf("%d connections were made while one served", now-made)
	}

	host, port, _ := net.SplitHostPort(next.Addr)
	for _, command := range [][]string{{"SENTINEL", "REMOVE", set.Name}, {"SENTINEL", "MONITOR", set.Name, host, port, "1"}} {
		if _, err := set.Sentinel.Do(command...); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "a lock on the new primary", 2*topologyFor, func() bool {
		take(t, s, claimOf(driver.NewID(), "a"), time.Minute, false)
		size, err := next.Do("DBSIZE")
		return err == nil && size != "0"
	})
}
