package etcdstore

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"

	"github.com/batonhq/baton/driver"
)

// Server says where etcd is, for Open.
type Server struct {
	// Endpoints are host:port pairs of some members, better of all.
	Endpoints []string

	// Username and Password log in. Default to none.
	Username, Password string

	// TLS encrypts the connections. Without a ServerName, that of each
	// endpoint is verified. Defaults to plain TCP.
	TLS *tls.Config
}

// Open connects to etcd and returns a store that closes its connections by
// itself. It fails with driver.ErrUnavailable if no member answers; ctx bounds
// how long it tries.
func Open(ctx context.Context, at Server, cfg Config) (*Store, error) {
	if len(at.Endpoints) == 0 {
		return nil, errors.New("etcd: no endpoint")
	}
	client, err := connect(ctx, at)
	if err != nil {
		return nil, err
	}
	s, err := New(client, cfg)
	if err != nil {
		client.Close()
		return nil, err
	}
	s.owned, s.server = true, &at
	// A caller that may not read the locks, or has mistyped the endpoints, hears of it
	// now.
	if _, err := s.list(ctx, &lock{key: "?", dir: s.dir("?")}); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// connect makes a client. The client logs in, if at all, before it is returned, and
// bounds that by its own time-out only.
func connect(ctx context.Context, at Server) (*clientv3.Client, error) {
	type made struct {
		client *clientv3.Client
		err    error
	}
	done := make(chan made, 1)
	go func() {
		c, err := clientv3.New(clientConfig(at))
		done <- made{c, err}
	}()
	select {
	case m := <-done:
		if m.err != nil {
			return nil, fmt.Errorf("etcd: %w: %w", driver.ErrUnavailable, m.err)
		}
		return m.client, nil
	case <-ctx.Done():
		go func() {
			if m := <-done; m.err == nil {
				m.client.Close()
			}
		}()
		return nil, ctx.Err()
	}
}

// verifying verifies every endpoint by the name that was asked for, if one was: gRPC
// would use the endpoint's name in any case.
func verifying(c *tls.Config) *tls.Config {
	if c == nil || c.ServerName == "" || c.InsecureSkipVerify {
		return c
	}
	name, roots := c.ServerName, c.RootCAs
	c = c.Clone()
	c.InsecureSkipVerify = true // VerifyConnection does it
	c.VerifyConnection = func(state tls.ConnectionState) error {
		options := x509.VerifyOptions{DNSName: name, Roots: roots, Intermediates: x509.NewCertPool()}
		for _, cert := range state.PeerCertificates[1:] {
			options.Intermediates.AddCert(cert)
		}
		_, err := state.PeerCertificates[0].Verify(options)
		return err
	}
	return c
}

func clientConfig(at Server) clientv3.Config {
	return clientv3.Config{
		Endpoints: at.Endpoints,
		Username:  at.Username,
		Password:  at.Password,
		TLS:       verifying(at.TLS),

		DialTimeout: 5 * time.Second,
		// The shortest that gRPC allows. Where the system can, a connection on which
		// nothing is acknowledged ends after the time-out. Members take pings on a
		// connection without a stream for an attack, and close it; a process that holds
		// or waits has a stream.
		DialKeepAliveTime:    10 * time.Second,
		DialKeepAliveTimeout: 2 * time.Second,

		Logger: zap.NewNop(), // errors are returned
		DialOptions: []grpc.DialOption{
			// By default gRPC leaves a member alone for up to two minutes.
			grpc.WithConnectParams(grpc.ConnectParams{
				Backoff:           backoff.Config{BaseDelay: 50 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
				MinConnectTimeout: 3 * time.Second,
			}),
		},
	}
}
