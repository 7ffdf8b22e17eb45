package redisstore

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"
)

// Server says where Redis is, for Open.
type Server struct {
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

// Open connects to Redis and returns a store whose Close closes the connections. The
// store gives up a connection on which no answer comes for two seconds and makes
// another one, which has one second to answer; both have more where answers usually
// take long. So leases of ten seconds and more survive a NAT or a load balancer that
// forgets the store's connections. A store has two connections for calls to a single
// server: one for a call while no other is under way, and one for all other calls.
// Besides the errors of New it fails with driver.ErrUnavailable if there is no
// connection; ctx bounds how long it tries.
func Open(ctx context.Context, at Server, cfg Config) (*Store, error) {
	return open(ctx, at, newLinks(at), cfg)
}

func open(ctx context.Context, at Server, links *links, cfg Config) (*Store, error) {
	switch {
	case len(at.Addrs) == 0:
		return nil, errors.New("redis: no address")
	case at.Cluster && at.Master != "":
		return nil, errors.New("redis: both Cluster and a Sentinel's master: choose one")
	case at.Cluster && at.DB != 0:
		return nil, errors.New("redis: Cluster has no database but 0")
	case !at.Cluster && at.Master == "" && len(at.Addrs) > 1:
		return nil, errors.New("redis: several addresses are for Sentinel or Cluster: say which")
	}
	option := rueidis.ClientOption{
		InitAddress:       at.Addrs,
		SelectDB:          at.DB,
		Username:          at.Username,
		Password:          at.Password,
		TLSConfig:         at.TLS,
		ClientName:        "baton",
		ForceSingleClient: !at.Cluster && at.Master == "",

		DisableCache: true, // nothing is ever cached
		// Locks are small. The defaults are half a megabyte for each
		// direction of each connection.
		ReadBufferEachConn:  1 << 15,
		WriteBufferEachConn: 1 << 15,
	}
	// One connection carries all scripts, in the order in which they are sent: the
	// clean-up after an abandoned request must not overtake that request, and with
	// several connections would have to wait for it.
	option.PipelineMultiplex = -1
	option.DialCtxFn = links.connect
	// links decide how long to wait. rueidis pings a connection that has been idle for
	// KeepAlive.
	option.Dialer = net.Dialer{Timeout: time.Minute, KeepAlive: time.Second}
	if at.Master != "" {
		option.Sentinel = rueidis.SentinelOption{
			MasterSet: at.Master,
			Username:  at.SentinelUsername,
			Password:  at.SentinelPassword,
			TLSConfig: at.TLS,
			Dialer:    option.Dialer,
			// A missed +switch-master would bind us to the old primary
			// for ever.
			TopologyRefreshInterval: 5 * time.Second,
		}
	}

	var second *direct
	if option.ForceSingleClient {
		second = newDirect(links, option)
		// The loss of this connection is then noticed at once, also while calls go by
		// the second one.
		option.AlwaysPipelining = true
	}
	client, err := connect(ctx, option)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, checkTimeout)
	defer cancel()
	if second != nil {
		second.beside = client
	}
	c := ruClient{c: client, links: links, direct: second, apart: new(atomic.Bool)}
	s, err := newStore(ctx, c, true, links.born, cfg)
	if err != nil {
		c.Close()
		links.close()
		return nil, err
	}
	s.server, s.links = &at, links
	return s, nil
}

// connect is rueidis.NewClient until ctx ends. rueidis cannot be told to stop
// connecting, so a client that comes too late is closed.
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
