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

// maxToken is the greatest integer that scripts calculate exactly: Lua's numbers are
// floating point.
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

// life has the last knowledge of the server's present life.
type life struct {
	// counted says that every connection is counted: the client is Open's. A caller's
	// client reconnects without notice, so its known serves only calls that began before.
	counted bool

	// connections counts the connections that were made. The server that has answered on
	// a connection is at least as old as the connection.
	connections atomic.Uint64

	known atomic.Pointer[knownLife]
	turn  chan struct{} // held by the call that asks the server
}

type knownLife struct {
	quorum.Life
	connections uint64    // at the time of the question
	asked       time.Time // the time of the question
}

func newLife(counted bool) *life { return &life{counted: counted, turn: make(chan struct{}, 1)} }

// current returns what is known if that is about the server that answered before came,
// else nil.
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

// lifeFor is how long an answer about the server serves. A restart ends its connections,
// and so is noticed sooner.
const lifeFor = 10 * time.Second

// Life implements quorum.Member, on a single server; not in Cluster or through Sentinel,
// where a server with older data may replace a lock's server.
//
// With Open's client, Life asks the server again after new connections, which show a
// restart. A client of the caller's does not report its connections, so each call costs a
// round trip; concurrent calls share one. FLUSHALL is not noticed.
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
	// The server's clock counts whole seconds: a server that started just before the
	// second changed says 1 at once.
	k.Server, k.Age = info["run_id"], time.Duration(max(up-1, 0))*time.Second
	k.Replicas = int(number(info["connected_slaves"]))
	return k, nil
}

// ownInfo reads sections of INFO of the only server, all on one connection. All of INFO
// would be much work for a server.
func (s *Store) ownInfo(ctx context.Context, sections ...string) (map[string]string, error) {
	info := map[string]string{}
	err := s.eachPrimary(ctx, func(n wire.Node) error {
		commands := make([][]string, len(sections))
		for i, section := range sections {
			commands[i] = []string{"INFO", section}
		}
		for _, r := range n.DoAll(ctx, commands) {
			if r.Err != nil && (!wire.Answered(r.Err) || refusalOf(r.Err) != 0 && !denied(r.Err)) {
				return failure(r.Err) // an INFO that the server denies is missing
			}
			maps.Copy(info, lines(text(r.Value)))
		}
		return nil
	})
	return info, err
}
