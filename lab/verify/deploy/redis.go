package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

func (b *builder) redis() {
	b.Site.Clocks = b.Options.Clocks
	b.oneRedis(testserver.Redis(b.Site, "--appendonly", "yes", "--appendfsync", "always"))
	b.disks()
	b.snapshots()
}

func (b *builder) redisForgetful() {
	b.Site.Clocks = b.Options.Clocks
	b.oneRedis(testserver.Redis(b.Site))
}

func (b *builder) oneRedis(s *testserver.RedisServer) {
	b.serve([]process{s}, []string{s.Addr}, func(a []string) string { return "redis://" + a[0] })
	b.redisAdmin(func() []*testserver.RedisServer { return []*testserver.RedisServer{s} })
	b.clocks()
}

// redlock is servers that keep nothing on disk, so a restarted server must not vote for a while.
func (b *builder) redlock() {
	b.Site.Clocks = b.Options.Clocks
	nodes := testserver.RedisNodes(b.Site, 5)
	// Redlock sorts its servers by address, so they must have the same order past the proxies.
	slices.SortFunc(nodes, func(m, n *testserver.RedisServer) int { return cmp.Compare(m.Addr, n.Addr) })
	var servers []process
	for _, n := range nodes {
		servers = append(servers, n)
	}
	b.serve(servers, testserver.Addrs(nodes), func(a []string) string {
		return fmt.Sprintf("redlock://%s?longest-ttl=%v", strings.Join(a, ","), b.Options.TTL)
	})
	b.redisAdmin(func() []*testserver.RedisServer { return nodes })
	b.clocks()
	b.Quorum = true
	for _, n := range nodes { // until they vote
		b.await("a server that votes", func() error {
			up, err := info(n, "server", "uptime_in_seconds")
			if err != nil {
				return err
			}
			if s, err := strconv.Atoi(up); err != nil || time.Duration(s)*time.Second <= b.Options.TTL {
				return fmt.Errorf("it has run for %s s", up)
			}
			return nil
		})
	}
}

// await repeats ask until it returns nil.
func (b *builder) await(what string, ask func() error) {
	if err := await(ask); err != nil {
		b.Fatalf("%s: %v", what, err)
	}
}

// patience bounds the time of each change that must happen.
const patience = time.Minute

func await(ask func() error) error {
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := ask()
		if err == nil || time.Now().After(deadline) {
			return err
		}
	}
}

// info returns one field of the server's INFO.
func info(s *testserver.RedisServer, section, field string) (string, error) {
	text, err := s.Do("INFO", section)
	if err != nil {
		return "", err
	}
	for l := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(l, field+":"); ok {
			return strings.TrimSpace(value), nil
		}
	}
	return "", fmt.Errorf("INFO %s has no %s", section, field)
}

// redisAdmin does an administrator's work on each server that accepts writes. It skips servers that
// do not answer, if one does.
func (b *builder) redisAdmin(writable func() []*testserver.RedisServer) {
	each := func(f func(*testserver.RedisServer) error) error {
		nodes := writable()
		var errs []error
		for _, n := range nodes {
			if err := f(n); err != nil {
				errs = append(errs, err)
			}
		}
		if len(errs) == len(nodes) {
			return errors.Join(errs...)
		}
		return nil
	}
	b.Scripts = func() error {
		return each(func(n *testserver.RedisServer) error {
			_, err := n.Do("SCRIPT", "FLUSH")
			return err
		})
	}
	b.Deafen = func() error {
		return each(func(n *testserver.RedisServer) error {
			_, err := n.Do("CLIENT", "KILL", "TYPE", "pubsub")
			return err
		})
	}
	b.Mute = func() (restore func() error, err error) {
		rule := func(channels string) error {
			return each(func(n *testserver.RedisServer) error {
				_, err := n.Do("ACL", "SETUSER", "default", channels)
				return err
			})
		}
		return func() error { return rule("allchannels") }, rule("resetchannels")
	}
	b.Keys = func() (total int, err error) {
		err = each(func(n *testserver.RedisServer) error {
			answer, err := n.Do("DBSIZE")
			if err != nil {
				return err
			}
			size, err := strconv.Atoi(answer)
			total += size
			return err
		})
		return total, err
	}
	b.Held = func() (keys []string, err error) {
		on := make(map[string]int) // number of servers with the key
		err = each(func(n *testserver.RedisServer) error {
			all, err := n.Do("KEYS", "*")
			for _, k := range lines(all) {
				if strings.HasPrefix(k, "baton:") {
					stays, err := staysLong(n, k)
					if err != nil {
						return err
					}
					if !stays {
						continue
					}
				}
				on[k]++
			}
			return err
		})
		need := 1
		if b.Quorum { // a lock on fewer servers excludes no client
			need = len(b.Servers)/2 + 1
		}
		for k, n := range on {
			if n >= need {
				keys = append(keys, k)
			}
		}
		return keys, err
	}
	b.Wipe = func(everything bool) error {
		return each(func(n *testserver.RedisServer) error {
			if everything {
				_, err := n.Do("FLUSHALL")
				return err
			}
			// Delete only the keys with names of locks, not the store's other keys.
			all, err := n.Do("KEYS", "*")
			if err != nil {
				return err
			}
			locks := slices.DeleteFunc(lines(all), func(k string) bool { return strings.HasPrefix(k, "baton:") })
			for _, k := range locks { // one by one: in a cluster they are on different slots
				if _, err := n.Do("DEL", k); err != nil {
					return err
				}
			}
			return nil
		})
	}
}

// staysLong reports whether a key belongs to holders, and outlives the lock's own key for much longer
// than the usual minute. Other keys are counters, queues and limits, which expire soon.
func staysLong(n *testserver.RedisServer, key string) (bool, error) {
	if !strings.HasPrefix(key, "baton:s:") && !strings.HasPrefix(key, "baton:i:") {
		return false, nil
	}
	text, err := n.Do("TTL", key)
	if err != nil {
		return false, err
	}
	const gone, soon = -2, 300 // seconds
	ttl, err := strconv.Atoi(strings.TrimSpace(text))
	return ttl != gone && (ttl < 0 || ttl > soon), err
}
