package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Config says where Redis is, for Open.
type Config struct {
	// Addrs are host:port pairs: of the server, of the Sentinels, or of
	// some nodes of the Cluster. A single server may be named by the
	// absolute path of its unix socket.
	Addrs []string

	// Master is the name under which the Sentinels at Addrs know the
	// primary. Defaults to none: Addrs are servers.
	Master string

	// Cluster says that Addrs are nodes of a Redis Cluster. Defaults to a
	// single server.
	Cluster bool

	// DB is the number of the database, which Cluster does not have.
	// Defaults to 0.
	DB int

	// Username and Password log in to the servers; SentinelUsername and
	// SentinelPassword to the Sentinels. Default to none.
	Username, Password                 string
	SentinelUsername, SentinelPassword string

	// TLS encrypts the connections to servers and Sentinels. Without a
	// ServerName, that of each address is verified. Defaults to plain TCP.
	TLS *tls.Config
}

// Open connects to Redis and returns a store that closes its connections by
// itself. Besides the errors of New it fails with driver.ErrUnavailable if
// there is no connection; ctx bounds how long it tries.
func Open(ctx context.Context, cfg Config, opts ...Option) (*Store, error) {
	switch {
	case len(cfg.Addrs) == 0:
		return nil, errors.New("redis: no address")
	case cfg.Cluster && cfg.Master != "":
		return nil, errors.New("redis: both Cluster and a Sentinel's master: choose one")
	case cfg.Cluster && cfg.DB != 0:
		return nil, errors.New("redis: Cluster has no database but 0")
	case !cfg.Cluster && cfg.Master == "" && len(cfg.Addrs) > 1:
		return nil, errors.New("redis: several addresses are for Sentinel or Cluster: say which")
	}
	option := rueidis.ClientOption{
		InitAddress:       cfg.Addrs,
		SelectDB:          cfg.DB,
		Username:          cfg.Username,
		Password:          cfg.Password,
		TLSConfig:         cfg.TLS,
		ClientName:        "baton",
		ForceSingleClient: !cfg.Cluster && cfg.Master == "",

		DisableCache: true, // nothing is ever cached
		// Locks are small. The defaults are half a megabyte for each
		// direction of each connection.
		ReadBufferEachConn:  1 << 15,
		WriteBufferEachConn: 1 << 15,
	}
	// One connection carries all scripts, in the order in which they were
	// sent: what cleans up after a request that was abandoned must not
	// overtake it, and with several must wait for it.
	option.PipelineMultiplex = -1
	option.Dialer = net.Dialer{Timeout: checkTimeout, KeepAlive: time.Second}
	born := newLife(true)
	unix := option.ForceSingleClient && strings.HasPrefix(cfg.Addrs[0], "/")
	option.DialCtxFn = func(ctx context.Context, addr string, d *net.Dialer, t *tls.Config) (conn net.Conn, err error) {
		switch {
		case unix:
			conn, err = d.DialContext(ctx, "unix", addr)
		case t != nil:
			conn, err = (&tls.Dialer{NetDialer: d, Config: t}).DialContext(ctx, "tcp", addr)
		default:
			conn, err = d.DialContext(ctx, "tcp", addr)
		}
		born.connections.Add(1) // before anything is asked on it
		return conn, err
	}
	if cfg.Master != "" {
		option.Sentinel = rueidis.SentinelOption{
			MasterSet: cfg.Master,
			Username:  cfg.SentinelUsername,
			Password:  cfg.SentinelPassword,
			TLSConfig: cfg.TLS,
			Dialer:    option.Dialer,
			// A missed +switch-master would bind us to the old primary
			// for ever.
			TopologyRefreshInterval: 5 * time.Second,
		}
	}

	client, err := connect(ctx, option)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	s, err := newStore(ctx, ruClient{client, nil, new(atomic.Bool)}, true, born, opts)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.config = &cfg
	return s, nil
}

// connect is rueidis.NewClient for a while. The client cannot be told to stop
// connecting, so what comes too late is closed.
func connect(ctx context.Context, option rueidis.ClientOption) (rueidis.Client, error) {
	type opened struct {
		client rueidis.Client
		err    error
	}
	done := make(chan opened, 1)
	go func() {
		c, err := rueidis.NewClient(option)
		done <- opened{c, err}
	}()
	select {
	case o := <-done:
		if o.err != nil {
			return nil, unavailable(o.err)
		}
		return o.client, nil
	case <-ctx.Done():
		go func() {
			if late := <-done; late.err == nil {
				late.client.Close()
			}
		}()
		return nil, ctx.Err()
	}
}
