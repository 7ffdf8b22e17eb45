// Package open turns a URL into a store.
//
//	memory:                                      in this process only
//	sqlite:PATH                                  a file of this machine
//	redis://[USER:PASSWORD@]HOST[:6379][/DB]     one Redis server
//	redis+unix://[USER:PASSWORD@]/SOCKET[?db=N]  the same by unix socket; also unix://
//	redis+sentinel://HOST,HOST,…/MASTER[/DB]     the primary that Sentinels know
//	redis+cluster://HOST,HOST,…                  a Redis Cluster
//	redlock://HOST,HOST,HOST[/DB]                a majority of independent Redis servers
//	mysql://[USER:PASSWORD@]HOST[:3306]/DATABASE MySQL or MariaDB; also mariadb://
//	postgres://[USER:PASSWORD@]HOST[:5432]/DB    PostgreSQL; of several hosts the primary; also postgresql://
//	zk://[USER:PASSWORD@]HOST[:2181],HOST,…/PATH ZooKeeper; each lock is a node below PATH
//	etcd://[USER:PASSWORD@]HOST[:2379],…[/PREFIX] etcd, some or all of its members
//
// The schemes rediss://, rediss+sentinel://, rediss+cluster://, redlocks:// and
// etcds:// speak TLS.
//
// # Characters
//
// In user names and passwords write %25 for "%", %2F for "/", %3F for "?"; after
// the hosts also %40 for "@", %23 for "#", %26 for "&". A plus sign stands for
// itself. Write IPv6 addresses in brackets.
//
// # Parameters
//
// Parameters follow "?", separated by "&". All Redis schemes have
//
//	prefix=TEXT           is put before every key
//	password-file=PATH    the password is what the file contains
//	password-env=NAME     the password is in this environment variable
//	connect-timeout=5s    how long opening the store may take; a connection that is
//	                      made later is given up after a second without an answer,
//	                      or more where answers take long
//	allow-eviction=true   accept a server that may evict locks when its memory is full
//	replicas=all          a lock counts when every replica knows of it that Sentinel or
//	                      Cluster could promote; replicas=N: when N replicas do;
//	                      replicas=auto: when one does, if any is connected (the
//	                      default with Sentinel and Cluster); not for redlock
//	ca=FILE               verifies the server (instead of the system's authorities)
//	cert=FILE key=FILE    the client's own certificate
//	server-name=NAME      the name that the server's certificate must have
//	verify=ca             with ca=FILE: whatever name the certificate has, as those that
//	                      MySQL makes itself have none
//	insecure=true         do not verify the server: never in production
//
// and with Sentinel
//
//	sentinel-user=NAME, sentinel-password-file=PATH, sentinel-password-env=NAME
//
// redlock has those of Redis and
//
//	longest-ttl=1m        no lock may have a longer TTL; a server that restarted
//	                      does not vote for that time, as it may have forgotten one
//	durable=true          the servers forget nothing (appendfsync always): they vote at once
//	allow-replicas=true   accept servers that have replicas
//
// Its servers share credentials and parameters. All programs must name the
// same ones, in the same spelling.
//
// MySQL and MariaDB have password-file, password-env, connect-timeout, and
//
//	connections=36        how many connections there may be at a time
//	tls=true              speak TLS, as do the parameters ca, cert, key, server-name, verify and insecure
//
// PostgreSQL has
//
//	password-file, password-env, connect-timeout   as above
//	sslmode=MODE, sslrootcert, sslcert, sslkey     as in other PostgreSQL clients
//	host=/DIRECTORY       of a unix socket
//	schema=NAME           where the tables are (instead of the search path)
//	migrate=false         do not make the tables if they are missing
//	connections=4         at most this many: one listens, two renew
//	pooler=true           a pooler such as PgBouncer is in between (usually noticed)
//	application_name=TEXT what the server shows
//
// ZooKeeper has password-file, password-env, connect-timeout (10s), tls and its
// parameters, and
//
//	session=30s           the session's time-out; half of it is the longest TTL
//	acl=world             with a user name: make nodes for all users, not for that one alone
//
// etcd has password-file, password-env, connect-timeout, and the parameters of TLS.
//
// An unknown parameter or scheme is an error that names the nearest known one.
package open

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/suggest"
)

// A URLError refuses a URL: no store was opened. Its text has no secrets.
type URLError struct {
	URL string // redacted; empty if the URL could not be parsed
	Err error
}

func (e *URLError) Error() string {
	if e.URL == "" || e.URL == hidden {
		return "store URL: " + e.Err.Error()
	}
	return fmt.Sprintf("store URL %s: %v", e.URL, e.Err)
}

func (e *URLError) Unwrap() error { return e.Err }

// An opener opens the store at an address. address.refuse makes its errors about the
// address.
type opener func(context.Context, *address) (driver.Store, error)

// A scheme is a kind of store.
type scheme struct {
	open   opener
	limits bool // it has rate limits
}

// schemes lists all schemes; stores do not register themselves.
var schemes = map[string]scheme{
	"memory":          {openMemory, true},
	"sqlite":          {openSQLite, true},
	"redis":           {openRedis, true},
	"rediss":          {openRedis, true},
	"redis+unix":      {openRedis, true},
	"unix":            {openRedis, true},
	"redis+sentinel":  {openRedis, true},
	"rediss+sentinel": {openRedis, true},
	"redis+cluster":   {openRedis, true},
	"rediss+cluster":  {openRedis, true},
	"redlock":         {openRedlock, false},
	"redlocks":        {openRedlock, false},
	"mysql":           {openMySQL, true},
	"mariadb":         {openMySQL, true},
	"postgres":        {openPostgres, true},
	"postgresql":      {openPostgres, true},
	"zk":              {openZooKeeper, false},
	"etcd":            {openEtcd, true},
	"etcds":           {openEtcd, true},
}

// instead has the replacements for schemes of other programs.
var instead = map[string]string{
	"file":           "sqlite:PATH",
	"sqlite3":        "sqlite:PATH",
	"tcp":            "redis://HOST:PORT",
	"valkey":         "redis://",
	"valkeys":        "rediss://",
	"sentinel":       "redis+sentinel://",
	"redis-sentinel": "redis+sentinel://",
	"redis-cluster":  "redis+cluster://",
	"redis-socket":   "redis+unix:///PATH",
	"rediss+redlock": "redlocks://",
	"redis+redlock":  "redlock://",
}

func known(scheme string) bool {
	_, ok := schemes[scheme]
	return ok
}

// Store opens the store at the URL. A *URLError says that the URL is wrong,
// ErrUnavailable that the store could not be reached. No error contains a secret of the
// URL.
//
// ctx bounds only the opening and should have a deadline: Store asks a Redis server once.
func Store(ctx context.Context, url string) (driver.Store, error) {
	a, err := parseKnown(url)
	if err != nil {
		return nil, err
	}
	return openAddress(ctx, a)
}

// ConnectTimeout returns the parameter connect-timeout of a URL, or its default.
func ConnectTimeout(url string) time.Duration {
	a, err := parse(url)
	if err != nil {
		a = &address{}
	}
	p := &params{given: a.params}
	return p.connectTimeout(a.scheme)
}

// parseKnown parses a URL of a known scheme. Its error is a *URLError.
func parseKnown(url string) (*address, error) {
	a, err := parse(url)
	if err == nil && !known(a.scheme) {
		err = unknownScheme(a)
	}
	if err != nil {
		return nil, &URLError{Redact(url), err}
	}
	return a, nil
}

// LimitStore is a store with rate limits.
type LimitStore interface {
	driver.Store
	limits.Store
}

// Limits is Store for programs that need rate limits. For a store without them it returns
// a *URLError that wraps errors.ErrUnsupported.
func Limits(ctx context.Context, url string) (LimitStore, error) {
	a, err := parseKnown(url)
	if err != nil {
		return nil, err
	}
	if !schemes[a.scheme].limits { // before a server that is down is waited for
		return nil, a.refuse(fmt.Errorf("%s:// has no rate limits, only locks: %w", a.scheme, errors.ErrUnsupported))
	}
	store, err := openAddress(ctx, a)
	if err != nil {
		return nil, err
	}
	return store.(LimitStore), nil // see schemes
}

// openAddress opens the store at an address of a known scheme.
func openAddress(ctx context.Context, a *address) (driver.Store, error) {
	store, err := schemes[a.scheme].open(ctx, a)
	if err != nil {
		if _, ok := errors.AsType[*URLError](err); !ok {
			err = &openError{a.String(), a.secrets(), err}
		}
		return nil, err
	}
	return store, nil
}

// Default returns the URL of the default store: a SQLite file in the user's state
// directory. Opening it makes that directory.
func Default() (url string, err error) {
	dir := os.Getenv("XDG_STATE_HOME")
	if !filepath.IsAbs(dir) { // the specification says to ignore relative ones
		home, err := os.UserHomeDir()
		if err != nil {
			return "", fmt.Errorf("no place for the default store: %w", err)
		}
		dir = filepath.Join(home, ".local", "state")
	}
	path := filepath.ToSlash(filepath.Join(dir, "baton", "locks.db"))
	return "sqlite:" + escapePath.Replace(path), nil
}

var escapePath = strings.NewReplacer("%", "%25", "?", "%3F", "#", "%23")

func unknownScheme(a *address) error {
	if form, ok := instead[a.scheme]; ok {
		return fmt.Errorf("unknown scheme %q: write %s", a.scheme, form)
	}
	if !a.slashes {
		// The text before the colon may be a user name, or a host.
		return errors.New("its scheme is not known: write sqlite:PATH or redis://HOST:PORT")
	}
	names := make([]string, 0, len(schemes))
	for name := range schemes {
		names = append(names, name)
	}
	slices.Sort(names)
	if near := suggest.Nearest(a.scheme, names); near != "" {
		return fmt.Errorf("unknown scheme %q: did you mean %s?", a.scheme, near)
	}
	return fmt.Errorf("unknown scheme %q: there are %s", a.scheme, strings.Join(names, ", "))
}

func (a *address) refuse(err error) error { return &URLError{a.String(), err} }

// secrets are the texts that no error may contain.
func (a *address) secrets() []string {
	all := []string{a.password}
	for _, p := range a.params {
		if p.secret() {
			all = append(all, p.value, p.raw)
		}
	}
	return all
}

// openError is the failure to open a store. Its cause comes from a client library, which
// may quote its arguments.
type openError struct {
	url     string
	secrets []string
	err     error
}

func (e *openError) Error() string {
	text := e.err.Error()
	for _, secret := range e.secrets {
		if len(secret) > 2 {
			text = strings.ReplaceAll(text, secret, hidden)
		}
	}
	if strings.Contains(text, "x509: ") && !strings.Contains(text, "authority") {
		text += "; if the certificate has another name, or none: server-name=NAME, or ca=FILE and verify=ca (PostgreSQL: sslmode=verify-ca)"
	}
	return fmt.Sprintf("open %s: %s", e.url, text)
}

func (e *openError) Unwrap() error { return e.err }
