package pgstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// Server is the address of PostgreSQL, and how Open connects.
type Server struct {
	// Addrs are host:port, or the directory of a unix socket and its port, as in
	// "/run/postgresql:5432". Open uses the first that is a primary.
	Addrs []string

	Database string // Defaults to the user's name.
	User     string // Defaults to the name of the program's user.
	Password string

	// SSLMode is disable, allow, prefer, require, verify-ca or verify-full, as in every
	// PostgreSQL client. Defaults to prefer, which uses TLS if the server does and
	// verifies nothing.
	SSLMode string

	// Files in PEM form: the authorities that verify the server, and the program's own
	// certificate with its key. Each may be empty.
	SSLRootCert, SSLCert, SSLKey string

	// Application is the name of the program for the server. Defaults to "baton".
	Application string

	// Conns is the greatest number of connections, besides the one that listens and up to
	// two for renewals. Waiters hold none. Defaults to 4.
	Conns int

	// NoMigrate makes Open refuse a database without the tables, with a *SchemaError. By
	// default Open makes them.
	NoMigrate bool

	// Schema is the schema of the tables. Defaults to the search path of the user. A
	// pooler that does not pass it on is refused with a *SearchPathError.
	Schema string
}

// Open connects and returns a store whose pool Close closes. The context bounds Open
// only.
//
// Open makes missing tables and functions, and replaces older ones. driver.ErrUnavailable
// says that the server could not be reached, or that the user may not make them.
func Open(ctx context.Context, at Server, cfg Config) (*Store, error) {
	pool, err := connect(ctx, at)
	if err != nil {
		return nil, err
	}
	if !at.NoMigrate {
		if err := Migrate(ctx, pool); err != nil {
			pool.Close()
			return nil, err
		}
	}
	s, err := newStore(ctx, pool, true, cfg.options)
	if err != nil {
		pool.Close()
		return nil, err
	}
	return s, nil
}

// connect makes a pool and one connection. A pooler refuses the settings of a server:
// then connect leaves them out.
func connect(ctx context.Context, at Server) (*pgxpool.Pool, error) {
	for plain := false; ; plain = true {
		config, err := at.pool(plain)
		if err != nil {
			return nil, err
		}
		pool, err := pgxpool.NewWithConfig(context.WithoutCancel(ctx), config)
		if err != nil {
			return nil, err
		}
		err = pool.Ping(ctx)
		if err == nil {
			return pool, nil
		}
		pool.Close()
		if e, ok := errors.AsType[*SearchPathError](err); ok {
			return nil, e
		}
		e, ok := errors.AsType[*pgconn.PgError](err)
		if plain || !ok || !strings.Contains(e.Message, "unsupported startup parameter") {
			return nil, failure(ctx, notSent{err})
		}
	}
}

// lockTimeout bounds how long a request waits, and occupies a connection, for a row that
// another session has locked by hand.
const lockTimeout = "2s"

func (at Server) pool(plain bool) (*pgxpool.Config, error) {
	var hosts, ports []string
	for _, addr := range at.Addrs {
		i := strings.LastIndexByte(addr, ':')
		if i < 0 {
			return nil, fmt.Errorf("postgres: address %q has no port", addr)
		}
		hosts, ports = append(hosts, strings.Trim(addr[:i], "[]")), append(ports, addr[i+1:])
	}
	var dsn strings.Builder
	for _, setting := range [][2]string{
		{"host", strings.Join(hosts, ",")},
		{"port", strings.Join(ports, ",")},
		{"user", at.User},
		{"password", at.Password},
		{"dbname", at.Database},
		{"sslmode", at.SSLMode},
		{"sslrootcert", at.SSLRootCert},
		{"sslcert", at.SSLCert},
		{"sslkey", at.SSLKey},
	} {
		if setting[1] != "" {
			fmt.Fprintf(&dsn, "%s='%s' ", setting[0], escape.Replace(setting[1]))
		}
	}
	if len(hosts) > 1 {
		dsn.WriteString("target_session_attrs=read-write")
	}
	config, err := pgxpool.ParseConfig(dsn.String())
	if err != nil {
		return nil, fmt.Errorf("postgres: %w", withoutConfig(err))
	}
	cc := config.ConnConfig
	application := at.Application
	if application == "" {
		application = "baton"
	}
	cc.ConnectTimeout = 5 * time.Second // otherwise a silent server occupies the pool for minutes
	cc.RuntimeParams = map[string]string{"application_name": application}
	if !plain {
		cc.RuntimeParams["default_transaction_isolation"] = "read committed"
		cc.RuntimeParams["enable_seqscan"] = "off" // see Store.direct
		cc.RuntimeParams["plan_cache_mode"] = "force_generic_plan"
		cc.RuntimeParams["lock_timeout"] = lockTimeout
		cc.RuntimeParams["idle_in_transaction_session_timeout"] = "10s"
		if at.Schema != "" {
			cc.RuntimeParams["search_path"] = quoted(at.Schema)
			config.AfterConnect = at.leads
		}
	} else if at.Schema != "" {
		return nil, errors.New("postgres: a pooler is before the server and does not let the schema be chosen: set the search path of the user or database instead")
	}
	config.MaxConns = 4 // plus renewingConns
	if at.Conns > 0 {
		config.MaxConns = int32(at.Conns)
	}
	config.MaxConnIdleTime = 5 * time.Minute
	return config, nil
}

// leads reports whether a new connection leads to the schema. A schema that does not
// exist is found later.
func (at Server) leads(ctx context.Context, conn *pgx.Conn) error {
	var found *string
	err := conn.QueryRow(ctx, `SELECT current_schema()`, pgx.QueryExecModeExec).Scan(&found)
	if err == nil && found != nil && *found != at.Schema {
		err = &SearchPathError{Want: at.Schema, Found: *found}
	}
	return err
}

func quoted(name string) string { return `"` + strings.ReplaceAll(name, `"`, `""`) + `"` }

var escape = strings.NewReplacer(`\`, `\\`, `'`, `\'`)
