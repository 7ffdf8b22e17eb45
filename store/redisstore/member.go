package redisstore

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/internal/quorum"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// maxToken is the highest number that scripts can count to: Lua's numbers are floating
// point.
const maxToken = 1 << 53

// Raise implements quorum.Member.
func (s *Store) Raise(ctx context.Context, key string, token int64) (int64, error) {
	n, err := s.checked(key)
	if err != nil {
		return 0, err
	}
	if token >= maxToken {
		return 0, fmt.Errorf("redis: no token can be above %d: %w", token, errors.ErrUnsupported)
	}
	v, err := s.run(ctx, raiseScript, []string{n.counter, n.high}, []string{strconv.FormatInt(token, 10)})
	return number(v), err
}

// life is what was last known of the server's present life.
type life struct {
	// counted says that every connection is counted: the client is Open's. A caller's
	// client connects again without notice, so there what is known serves no call that
	// begins later.
	counted bool

	// connections counts the connections that were made. Whatever was answered
	// on a connection, the server that gave the answer is as old as that
	// connection or older.
	connections atomic.Uint64

	known atomic.Pointer[knownLife]
	turn  chan struct{} // held by the call that asks the server
}

type knownLife struct {
	quorum.Life
	connections uint64    // when the server was asked
	asked       time.Time // when it was asked
}

func newLife(counted bool) *life { return &life{counted: counted, turn: make(chan struct{}, 1)} }

// current returns what is known if it serves a call that began at came: if the known
// server is the one that answered before then. It returns nil if not.
func (l *life) current(came time.Time) *knownLife {
	k := l.known.Load()
	switch {
	case k == nil:
	case k.asked.After(came),
		l.counted && k.connections == l.connections.Load() && time.Since(k.asked) < lifeFor:
		return k
	}
	return nil
}

// lifeFor is how long an answer about the server serves. A restart is noticed
// by the connections that it ends.
const lifeFor = 10 * time.Second

// Life implements quorum.Member, on a single server; not in Cluster or through
// Sentinel, where a lock's server may be replaced by one that knows less.
//
// With Open's client a restart is noticed by the connections that were made
// since, and the server is asked again then. A client that the caller brought
// does not tell of its connections, so each call asks the server, which costs a
// round trip; calls at the same time share one. FLUSHALL is not noticed.
func (s *Store) Life(ctx context.Context) (quorum.Life, error) {
	if s.client.Cluster() || s.client.FollowsPrimary() {
		return quorum.Life{}, fmt.Errorf("redis: neither Cluster nor Sentinel is one server: %w", errors.ErrUnsupported)
	}
	came := time.Now()
	k := s.life.current(came)
	if k == nil {
		select {
		case s.life.turn <- struct{}{}:
			defer func() { <-s.life.turn }()
		case <-ctx.Done():
			return quorum.Life{}, ctx.Err()
		}
		if k = s.life.current(came); k == nil {
			var err error
			if k, err = s.askLife(ctx); err != nil {
				return quorum.Life{}, err
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
	info, err := s.ownInfo(ctx, "server", "replication")
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

// ownInfo reads sections of INFO of the only server, all of them on one
// connection. The whole of INFO would be much work for a server.
func (s *Store) ownInfo(ctx context.Context, sections ...string) (map[string]string, error) {
	info := map[string]string{}
	err := s.eachPrimary(ctx, func(n wire.Node) error {
		commands := make([][]string, len(sections))
		for i, section := range sections {
			commands[i] = []string{"INFO", section}
		}
		for _, r := range n.DoAll(ctx, commands) {
			if r.Err != nil && (!wire.Answered(r.Err) || refusalOf(r.Err) != 0 && !denied(r.Err)) {
				return failure(r.Err) // what it does not let us see is missing
			}
			maps.Copy(info, lines(text(r.Value)))
		}
		return nil
	})
	return info, err
}
