package open

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redlock"
)

// redisTarget is the content of a Redis URL, independent of any client library.
type redisTarget struct {
	kind           redisKind
	addresses      []string // host:port, or the path of the socket
	user, password string
	db             int
	prefix         string
	tls            *tls.Config // nil without TLS
	connectTimeout time.Duration
	allowEviction  bool
	replicas       redisstore.Replicas

	quorum redlock.Config // for redisQuorum

	master                         string // Sentinel's name of the primary
	sentinelUser, sentinelPassword string
}

type redisKind int

const (
	redisSingle redisKind = iota
	redisSocket
	redisSentinel
	redisCluster
	redisQuorum
)

// maxDB bounds the number of a Redis database. Servers have 16 by default.
const maxDB = 1 << 20

// redis parses a Redis URL.
func (a *address) redis() (*redisTarget, error) {
	t := &redisTarget{user: a.user, password: a.password}
	defaultPort := "6379"
	switch {
	case a.scheme == "unix" || a.scheme == "redis+unix":
		t.kind = redisSocket
	case strings.HasSuffix(a.scheme, "+sentinel"):
		t.kind, defaultPort = redisSentinel, "26379"
	case strings.HasSuffix(a.scheme, "+cluster"):
		t.kind = redisCluster
	case strings.HasPrefix(a.scheme, "redlock"):
		t.kind = redisQuorum
	}
	if !a.slashes {
		return nil, fmt.Errorf(`"//" is missing after "%s:"`, a.scheme)
	}

	path := a.path
	switch {
	case t.kind == redisSocket:
		if len(a.hosts) > 0 || path == "" {
			return nil, errors.New("a socket is named by an absolute path: write redis+unix:///PATH, with three slashes")
		}
		t.addresses, path = []string{"/" + path}, ""
	case len(a.hosts) == 0:
		if t.kind != redisSingle {
			return nil, errors.New("it names no host")
		}
		t.addresses = []string{"localhost:" + defaultPort}
	case len(a.hosts) > 1 && t.kind == redisSingle:
		return nil, errors.New("it names several hosts: write redis+cluster:// or redis+sentinel://, or name one")
	default:
		for _, h := range a.hosts {
			t.addresses = append(t.addresses, h.address(defaultPort))
		}
	}

	if t.kind == redisSentinel {
		t.master, path, _ = strings.Cut(path, "/")
		if t.master == "" {
			return nil, errors.New("the name of the primary is missing: write redis+sentinel://HOST,HOST/NAME/DB")
		}
	}
	p := &params{given: a.params}
	if path != "" {
		db, err := strconv.Atoi(path)
		if err != nil || db < 0 || db > maxDB {
			return nil, errors.New("what follows the last slash is not the number of a database")
		}
		t.db = db
	}
	if t.kind != redisCluster {
		if db, ok := p.number("db", 0, maxDB); ok {
			if path != "" && db != t.db {
				return nil, errors.New("the path and parameter db name different databases")
			}
			t.db = db
		}
	} else if t.db != 0 {
		return nil, errors.New("a cluster has only database 0")
	}

	t.prefix = p.text("prefix")
	if t.prefix != "" {
		if err := check.Key(t.prefix); err != nil {
			p.fail("parameter prefix is no beginning of a key: it is longer than %d bytes, or has control characters", check.MaxKey)
		}
	}
	if password, ok := p.password("password"); ok {
		if t.password != "" {
			p.fail("the password is given twice, in the URL and by a parameter")
		}
		t.password = password
	}
	t.connectTimeout = p.connectTimeout(a.scheme)
	t.allowEviction = p.flag("allow-eviction")
	if t.kind == redisQuorum {
		t.quorum = p.redlock()
	} else {
		t.replicas = p.replicas(t.kind == redisSentinel || t.kind == redisCluster)
	}
	if t.kind == redisSentinel {
		t.sentinelUser = p.text("sentinel-user")
		t.sentinelPassword, _ = p.password("sentinel-password")
	}
	if t.kind != redisSocket {
		t.tls = p.tls(strings.HasPrefix(a.scheme, "rediss") || a.scheme == "redlocks")
	}
	return t, p.finish()
}

// replicas parses the parameter replicas. named says that the servers tell which replicas
// there are.
func (p *params) replicas(named bool) redisstore.Replicas {
	switch p.text("replicas") {
	case "":
		if named { // these promote replicas by themselves
			return redisstore.AutoReplicas
		}
		return redisstore.NoReplicas
	case "auto":
		return redisstore.AutoReplicas
	case "all":
		if !named {
			p.fail("parameter replicas: only Sentinel (redis+sentinel://) and Cluster tell which replicas are all: say how many")
		}
		return redisstore.AllReplicas
	}
	g, _ := p.get("replicas")
	n, err := strconv.Atoi(g.value)
	if err != nil || n < 0 || n > maxReplicas {
		p.fail("parameter replicas is neither all nor auto, nor a number from 0 to %d", maxReplicas)
	}
	return redisstore.Replicas(n)
}

// maxReplicas is more replicas than a primary of Redis should have.
const maxReplicas = 100

func openRedis(ctx context.Context, a *address) (driver.Store, error) {
	t, err := a.redis()
	if err != nil {
		return nil, a.refuse(err)
	}
	ctx, cancel := context.WithTimeout(ctx, t.connectTimeout)
	defer cancel()
	store, err := t.open(ctx)
	if err != nil {
		return nil, t.refuse(a, err)
	}
	return store, nil
}

func (t *redisTarget) open(ctx context.Context) (*redisstore.Store, error) {
	return redisstore.Open(ctx, redisstore.Server{
		Addrs:            t.addresses,
		Master:           t.master,
		Cluster:          t.kind == redisCluster,
		DB:               t.db,
		Username:         t.user,
		Password:         t.password,
		SentinelUsername: t.sentinelUser,
		SentinelPassword: t.sentinelPassword,
		TLS:              t.tls,
	}, redisstore.Config{Prefix: t.prefix, AllowEviction: t.allowEviction, Replicas: t.replicas})
}

// refuse separates errors about the URL from those of a server that cannot be reached.
func (t *redisTarget) refuse(a *address, err error) error {
	switch {
	case errors.As(err, new(*redisstore.EvictionError)):
		return a.refuse(fmt.Errorf("%w by allow-eviction=true", err))
	case errors.As(err, new(*redisstore.ReplicaError)), errors.As(err, new(*redisstore.VersionError)):
		return a.refuse(err)
	case errors.As(err, new(*driver.KeyError)):
		return a.refuse(fmt.Errorf("parameter prefix: %w", err))
	}
	return err
}
