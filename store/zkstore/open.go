package zkstore

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
)

// Server says where ZooKeeper is, for Open.
type Server struct {
	// Addrs are host:port each; more than one for an ensemble.
	Addrs []string

	// Session is the session's time-out to ask for. The server may grant another one:
	// by default 2 to 20 of its ticks. Half of what it grants is the longest TTL, and a
	// process that died keeps its locks for all of it. Defaults to DefaultSession.
	Session time.Duration

	// User and Password are those of ZooKeeper's digest scheme. With a User and without
	// a Config.ACL, only that user may use the nodes.
	User, Password string

	// TLS, if not nil, encrypts the connections.
	TLS *tls.Config
}

// Open connects to ZooKeeper and returns a store that owns the connection. It waits
// until there is a session, or ctx ends.
func Open(ctx context.Context, at Server, cfg Config) (*Store, error) {
	if len(at.Addrs) == 0 {
		return nil, errors.New("zkstore: no servers")
	}
	if at.Session == 0 {
		at.Session = DefaultSession
	}
	if _, err := CheckRoot(cfg.Root); err != nil {
		return nil, fmt.Errorf("zkstore: root %q: %w", cfg.Root, err)
	}
	servers := new(hosts)
	session := &Session{leaving: servers.left}
	if at.TLS != nil {
		session.Dial = func(network, address string, timeout time.Duration) (net.Conn, error) {
			return tls.DialWithDialer(&net.Dialer{Timeout: timeout}, network, address, at.TLS)
		}
	}
	conn, _, err := zk.Connect(slices.Clone(at.Addrs), at.Session, session.Option(),
		zk.WithHostProvider(servers), zk.WithLogger(silent), zk.WithLogInfo(false))
	if err != nil {
		return nil, fmt.Errorf("zkstore: %w", err)
	}
	if at.User != "" {
		err = authenticate(ctx, session, conn, at.User+":"+at.Password)
		if cfg.ACL == nil {
			cfg.ACL = zk.AuthACL(zk.PermAll)
		}
	}
	var s *Store
	if err == nil {
		s, err = New(ctx, conn, session, cfg)
	}
	if err != nil {
		conn.Close()
		return nil, err
	}
	s.owned, s.asked = true, at.Session
	return s, nil
}

// authenticate gives the user's name and password to the client, which repeats them
// first on every connection.
func authenticate(ctx context.Context, session *Session, conn *zk.Conn, credentials string) error {
	if _, err := session.await(ctx); err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() { done <- conn.AddAuth("digest", []byte(credentials)) }()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("zookeeper: %w: authenticate: %w", driver.ErrUnavailable, err)
		}
		return nil
	case <-ctx.Done():
		return unavailable(ctx.Err())
	}
}
