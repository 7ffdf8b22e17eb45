package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// maxToken is the highest number that scripts can count to: they reckon in
// floating point.
const maxToken = 1 << 53

// Raise implements driver.Member.
func (s *Store) Raise(ctx context.Context, key string, token int64) error {
	n, err := s.checked(key)
	if err != nil {
		return err
	}
	if token >= maxToken {
		return fmt.Errorf("redis: no token can be above %d: %w", token, errors.ErrUnsupported)
	}
	_, err = s.run(ctx, raiseScript, []string{n.counter, n.high}, []string{strconv.FormatInt(token, 10)})
	return err
}

// life is what was last known of the server's present life.
type life struct {
	// connections counts the connections that were made, as far as we hear
	// of it. Whatever was answered on a connection, the server that gave the
	// answer is as old as that connection or older.
	connections atomic.Uint64

	known atomic.Pointer[knownLife]
	turn  chan struct{} // held by who asks the server
}

type knownLife struct {
	driver.Life
	connections uint64    // when the server was asked
	asked       time.Time // when it was asked
}

func newLife() *life { return &life{turn: make(chan struct{}, 1)} }

// current is what is known, if it still serves.
func (l *life) current() *knownLife {
	if k := l.known.Load(); k != nil && k.connections == l.connections.Load() && time.Since(k.asked) < lifeFor {
		return k
	}
	return nil
}

// lifeFor is how long an answer about the server serves. A restart is noticed
// by the connections that it ends.
const lifeFor = 10 * time.Second

// Life implements driver.Member, on a single server; not in Cluster or through
// Sentinel, where a lock's server may be replaced by one that knows less.
//
// A restart is noticed by the connections that were made since. A client that
// the caller brought does not tell of its connections; there the one that
// brings hints stands for all. FLUSHALL is not noticed.
func (s *Store) Life(ctx context.Context) (driver.Life, error) {
	if s.client.Cluster() || s.client.FollowsPrimary() {
		return driver.Life{}, fmt.Errorf("redis: neither Cluster nor Sentinel is one server: %w", errors.ErrUnsupported)
	}
	s.pushes.start()
	k := s.life.current()
	if k == nil {
		select {
		case s.life.turn <- struct{}{}:
			defer func() { <-s.life.turn }()
		case <-ctx.Done():
			return driver.Life{}, ctx.Err()
		}
		if k = s.life.current(); k == nil {
			var err error
			if k, err = s.askLife(ctx); err != nil {
				return driver.Life{}, err
			}
			s.life.known.Store(k)
		}
	}
	now := k.Life
	now.Age += time.Since(k.asked)
	return now, nil
}

func (s *Store) askLife(ctx context.Context) (*knownLife, error) {
	k := &knownLife{connections: s.life.connections.Load(), asked: time.Now()}
	info, err := s.ownInfo(ctx)
	if err != nil {
		return nil, err
	}
	up, err := strconv.ParseInt(info["uptime_in_seconds"], 10, 64)
	if err != nil || info["run_id"] == "" {
		return nil, fmt.Errorf("redis: INFO does not show run_id and uptime_in_seconds: %w", errors.ErrUnsupported)
	}
	// The server reckons in whole seconds: one that started just before the
	// second changed says 1 at once.
	k.Server, k.Age = info["run_id"], time.Duration(max(up-1, 0))*time.Second
	k.Replicas = int(number(info["connected_slaves"]))
	return k, nil
}

// ownInfo reads INFO of the only server.
func (s *Store) ownInfo(ctx context.Context) (info map[string]string, err error) {
	err = s.eachPrimary(ctx, func(n wire.Node) error {
		info, err = serverInfo(ctx, n)
		if err != nil {
			return failure(err)
		}
		return nil
	})
	return info, err
}
