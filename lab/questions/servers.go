package questions

import (
	"context"
	"fmt"
	"regexp"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab"
	"github.com/batonhq/baton/open"
)

// startRedis starts a server that keeps nothing on disk, and records it.
func startRedis(r *lab.Run, args ...string) *testserver.RedisServer {
	s := testserver.Redis(r.Site, args...)
	nameRedis(r, s)
	return s
}

// nameRedis records a server and its version.
func nameRedis(r *lab.Run, s *testserver.RedisServer) {
	info, err := s.Do("INFO", "server")
	if err != nil {
		r.Site.Fatalf("ask Redis for its version: %v", err)
	}
	r.With("redis-server " + redisVersion.FindStringSubmatch(info + "redis_version:?")[1])
}

var redisVersion = regexp.MustCompile(`redis_version:(\S+)`)

// startZooKeeper starts a server and records it.
func startZooKeeper(r *lab.Run, lines ...string) *testserver.ZooKeeperServer {
	s := testserver.ZooKeeper(r.Site, lines...)
	text, err := s.Ask("srvr")
	if err != nil {
		r.Site.Fatalf("ask ZooKeeper for its version: %v", err)
	}
	r.With("zookeeper " + zooKeeperVersion.FindStringSubmatch(text + "version: ?")[1])
	return s
}

var zooKeeperVersion = regexp.MustCompile(`version: ([0-9.?]+)`)

// zkSession is a session of ZooKeeper's client for Go, which ends with the experiment.
func zkSession(ctx context.Context, r *lab.Run, addr string, timeout time.Duration) (*zk.Conn, error) {
	conn, events, err := zk.Connect([]string{addr}, timeout, zk.WithLogger(silence{}), zk.WithMaxConnBufferSize(1<<16))
	if err != nil {
		return nil, err
	}
	r.Site.Cleanup(conn.Close)
	for {
		select {
		case e := <-events:
			if e.State == zk.StateHasSession {
				return conn, nil
			}
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// silence is a logger for ZooKeeper's client that discards its messages.
type silence struct{}

func (silence) Printf(string, ...any) {}

// lockerAt opens a store and makes a Locker over it, like a separate program. Both end with
// the experiment, or by crash, which releases nothing and stops all renewals.
func lockerAt(ctx context.Context, r *lab.Run, url string, cfg baton.Config) (locks *baton.Locker, crash func(), err error) {
	store, err := open.Store(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	closed := make(chan struct{})
	crash = func() {
		select {
		case <-closed:
		default:
			close(closed)
			_ = store.Close()
		}
	}
	r.Site.Cleanup(crash)
	var d driver.Store = store
	locks, err = baton.New(d, cfg)
	return locks, crash, err
}

// refuses reports whether a lock is not granted within half a second.
func refuses(ctx context.Context, locks *baton.Locker, key string) bool {
	ctx, cancel := context.WithTimeout(ctx, 500*time.Millisecond)
	defer cancel()
	_, err := locks.Lock(ctx, key)
	return err != nil
}

// unexpected is the error of an outcome that contradicts the answer.
func unexpected(format string, args ...any) error {
	return fmt.Errorf("this was not expected: "+format, args...)
}

// wait waits for a time that is part of the experiment.
func wait(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
