package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/puddle/v2"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/settling"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Store keeps locks (driver.Store, with all abilities of package driver), rate limits
// (limits.Store, limits.Lister, limits.Overrider) and records (driver.Records,
// driver.RecordLister) in PostgreSQL. Use New or Open. All methods are safe for
// concurrent use.
//
// Errors about the tables are *SchemaError.
type Store struct {
	records
	overrides

	pool   *pgxpool.Pool
	owned  bool   // Close closes the pool
	pooled bool   // there is a pooler before the server
	direct bool   // statements outside functions use indexes, too
	home   string // the schema of the tables

	renewing *pgxpool.Pool // connections for renewals of held locks only
	renewal  *sqlstore.Renewals
	confirm  *sqlstore.Renewals // for positions

	wrap   atomic.Bool
	closed atomic.Bool

	patience time.Duration
	batcher  batcher
	hints    hints
	sweep    sweeper
	limits   *sqlstore.Limits
	left     *sqlstore.Abandoned // of attempts to acquire

	limitSweep limitSweeper

	moved settling.Mark
}

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Mover      = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Together   = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)

	_ driver.Refusal = (*SchemaError)(nil)
	_ driver.Refusal = (*StandbyError)(nil)
	_ driver.Refusal = (*SearchPathError)(nil)
	_ driver.Refusal = (*EncodingError)(nil)
)

var traits = driver.Traits{
	Store:     "postgres",
	Fencing:   true,
	FIFO:      true,
	Shared:    true,
	Permits:   true,
	Durable:   true,
	Failover:  true,
	Processes: true,
	Machines:  true,
	MinTTL:    100 * time.Millisecond, // a commit may take as long as a shorter TTL
	MaxTTL:    365 * 24 * time.Hour,
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return traits }

// renewingConns is the number of connections for renewals: one, and another one in case
// that it falls silent.
const renewingConns = 2

// Config says how a store works. The zero Config is ready to use.
type Config struct {
	// Pooler says that there is a pooler before the server, so that the store can neither
	// prepare statements nor listen. By default the store finds out: the process that
	// answers is then not the one that it connected to.
	Pooler bool
}

func (c Config) options(o *options) { o.pooler = c.Pooler }

// options are those of Config, and those for tests.
type options struct {
	pooler bool
	poll   time.Duration // how often to look for grants if the process cannot listen
	idle   time.Duration // how long a key is unused before its row is removed
	sweep  time.Duration // how often to look for such rows
	early  bool          // the first look is at once

	patience time.Duration // how long a request continues after its context
	decide   time.Duration // how long a transaction about limits may take

	repeats []time.Duration // see sqlstore.Abandoned
}

func defaults() options {
	return options{
		decide: 10 * time.Second,
		poll:   5 * time.Millisecond, idle: 10 * time.Minute, sweep: 20 * time.Second, patience: sqlstore.Grace,
		repeats: sqlstore.Repeats, early: rand.IntN(16) == 0,
	}
}

// New returns a store over a pool of the program, which Close leaves open. It asks the
// server for the version of the tables, and fails with a *SchemaError if Migrate must be
// called first.
//
// The pool's connections serve any number of requests, except renewals of held locks. For
// these the store makes up to two more, with the pool's configuration, when it first
// needs them, and closes them. So leases are kept even if the pool is exhausted. One more
// connection, taken out of the pool, listens.
//
// All connections must lead to the same tables. The store checks each once, except with a
// pooler. It closes one that leads to other tables, and the request fails with a
// *SearchPathError that wraps driver.ErrUnavailable. A program that changes search_path
// on a connection must change it back.
//
// An uncontended lock costs the server less if its connections have enable_seqscan off
// and plan_cache_mode force_generic_plan, as those of Open have.
func New(ctx context.Context, pool *pgxpool.Pool, cfg Config) (*Store, error) {
	return newStore(ctx, pool, false, cfg.options)
}

func newStore(ctx context.Context, pool *pgxpool.Pool, owned bool, change ...func(*options)) (*Store, error) {
	o := defaults()
	for _, set := range change {
		set(&o)
	}
	s := &Store{pool: pool, owned: owned, patience: o.patience}
	texts := kept.Texts{Store: traits.Store, Swap: s.swapText, List: s.listTexts}
	s.records, s.overrides = kept.NewRecords(texts), kept.NewOverrides(texts)
	if err := s.probe(ctx, o); err != nil {
		return nil, err
	}
	apart := pool.Config()
	apart.MinConns, apart.MinIdleConns, apart.MaxConns = 0, 0, renewingConns
	var err error
	if s.renewing, err = pgxpool.NewWithConfig(context.WithoutCancel(ctx), apart); err != nil {
		return nil, fmt.Errorf("postgres: %w", withoutConfig(err))
	}
	s.renewal = sqlstore.NewRenewals(renewingConns, s.renewWith(s.renewing))
	s.confirm = sqlstore.NewRenewals(max(1, int(pool.Config().MaxConns)/2), s.renewWith(pool))
	s.batcher.init(s)
	s.limits = s.newLimits(o.decide)
	s.hints.init(s, o)
	s.sweep.init(s, o)
	s.limitSweep.init()
	s.left = sqlstore.NewAbandoned(o.repeats, s.releaseAgain)
	return s, nil
}

// probe asks the server for the settings of the store, on one connection.
func (s *Store) probe(ctx context.Context, o options) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		return failure(ctx, notSent{err})
	}
	defer conn.Release()
	var pid uint32
	var encoding, scans string
	var standby bool
	if err := conn.QueryRow(ctx, `SELECT pg_backend_pid(), current_setting('server_encoding'), pg_is_in_recovery(), current_setting('enable_seqscan')`,
		pgx.QueryExecModeExec).Scan(&pid, &encoding, &standby, &scans); err != nil {
		return failure(ctx, err)
	}
	// A pooler tells clients a process number of its own.
	s.pooled = o.pooler || pid != conn.Conn().PgConn().PID()
	s.direct = scans == "off" && !s.pooled
	if encoding != "UTF8" && encoding != "SQL_ASCII" {
		return &EncodingError{encoding}
	}
	if standby {
		return &StandbyError{}
	}
	found, err := schemaVersion(ctx, conn)
	if err == nil && found < SchemaVersion {
		err = &SchemaError{Found: found}
	}
	if err == nil {
		s.home, err = homeOf(ctx, conn)
		err = failure(ctx, err)
		conn.Conn().PgConn().CustomData()[askedWhere] = s.home
	}
	return err
}

// homeOf is the schema of the tables on a connection.
func homeOf(ctx context.Context, db querier) (home string, err error) {
	err = db.QueryRow(ctx, `SELECT coalesce((SELECT nspname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace WHERE c.oid = to_regclass('baton_lock')), '')`,
		pgx.QueryExecModeExec).Scan(&home)
	return home, err
}

// askedWhere is the key under which a connection has its schema.
const askedWhere = "github.com/batonhq/baton/store/pgstore: schema"

// leads returns an error if the connection leads to other tables than the store's. It
// asks each connection once.
func (s *Store) leads(ctx context.Context, conn *pgx.Conn) error {
	if s.pooled { // a pooler's connection leads to several servers' processes
		return nil
	}
	noted := conn.PgConn().CustomData()
	home, asked := noted[askedWhere].(string)
	if !asked {
		var err error
		if home, err = homeOf(ctx, conn); err != nil {
			return notSent{err}
		}
		if home == "" { // there are no tables, as the statement will report
			return nil
		}
		noted[askedWhere] = home
	}
	if home == s.home {
		return nil
	}
	_ = conn.Close(ctx)
	return notSent{&SearchPathError{Want: s.home, Found: home}}
}

func schemaVersion(ctx context.Context, db querier) (version int, err error) {
	err = db.QueryRow(ctx, `SELECT baton_schema()`, pgx.QueryExecModeExec).Scan(&version)
	if err != nil {
		err = failure(ctx, err)
		if e, ok := errors.AsType[*SchemaError](err); ok && e.Found == 0 {
			return 0, nil
		}
	}
	return version, err
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// row runs a statement with one row as its answer, as one attempt in one round trip.
func (s *Store) row(ctx context.Context, sql string, args []any, dest ...any) error {
	return s.ask(ctx, sql, args, oneRow(dest...))
}

func oneRow(dest ...any) func(pgx.Rows) error {
	return func(rows pgx.Rows) error {
		if !rows.Next() {
			if err := rows.Err(); err != nil {
				return err
			}
			return pgx.ErrNoRows
		}
		return rows.Scan(dest...)
	}
}

// ask runs a statement and calls read for its rows. What read has set may be used only if
// the result is nil.
func (s *Store) ask(ctx context.Context, sql string, args []any, read func(pgx.Rows) error) error {
	return s.askOf(ctx, s.pool, sql, args, read)
}

func (s *Store) askOf(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, read func(pgx.Rows) error) error {
	if s.closed.Load() {
		return driver.ErrClosed
	}
	return s.askAnyway(ctx, pool, sql, args, read)
}

// askAnyway is askOf, even after Close.
func (s *Store) askAnyway(ctx context.Context, pool *pgxpool.Pool, sql string, args []any, read func(pgx.Rows) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	conn, err := s.connect(ctx, pool)
	if err != nil {
		return err
	}
	return s.askWith(ctx, conn, sql, args, read)
}

func (s *Store) connect(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Conn, error) {
	conn, err := pool.Acquire(ctx)
	if errors.Is(err, puddle.ErrClosedPool) {
		go s.Close() // the program has closed its pool: the pool for renewals must end, too
	}
	switch {
	case err == nil:
		return conn, nil
	case s.closed.Load(): // Close may have ended the attempt to connect
		return nil, driver.ErrClosed
	}
	return nil, failure(ctx, notSent{err})
}

// askWith is ask on a connection, which it returns to the pool.
func (s *Store) askWith(ctx context.Context, conn *pgxpool.Conn, sql string, args []any, read func(pgx.Rows) error) error {
	later, stop := sqlstore.Outlive(ctx, s.patience)
	defer stop()
	err := s.askOn(later, conn.Conn(), sql, args, read)
	if isCode(err, readOnly) {
		s.leave(later, conn)
	}
	giveBack(conn)
	return failure(ctx, err)
}

// giveBack returns a connection to its pool, which closes it if a transaction is open.
func giveBack(conn *pgxpool.Conn) {
	if conn.Conn().IsClosed() {
		conn.Hijack() // otherwise the pool counts it until the server notices the end
	} else {
		conn.Release()
	}
}

// leave closes the connection to the wrong server, and all others of the store's own
// pools.
func (s *Store) leave(ctx context.Context, conn *pgxpool.Conn) {
	if s.owned && !s.moved.TrySet() {
		return
	}
	_ = conn.Conn().Close(ctx)
	s.renewing.Reset()
	if s.owned {
		s.pool.Reset()
	}
	s.hints.leave()
}

func (s *Store) askOn(ctx context.Context, conn *pgx.Conn, sql string, args []any, read func(pgx.Rows) error) error {
	st := statement{sql, args, read}
	if !s.wrap.Load() {
		if err := s.several(ctx, conn, st); !isCode(err, wrongIsolation) {
			return err
		}
		s.wrap.Store(true) // nothing was done
	}
	err := s.several(ctx, conn, statement{sql: beginSQL}, st, statement{sql: commitSQL})
	if err != nil {
		s.rollBack(ctx, conn)
	}
	return err
}

const (
	beginSQL  = `BEGIN ISOLATION LEVEL READ COMMITTED`
	commitSQL = `COMMIT`
)

type statement struct {
	sql  string
	args []any
	read func(pgx.Rows) error // may be nil
}

// several runs statements in one round trip, until one fails. With a pooler each takes
// its own, because a batch prepares its statements.
func (s *Store) several(ctx context.Context, conn *pgx.Conn, all ...statement) error {
	if err := s.leads(ctx, conn); err != nil {
		return err
	}
	if s.pooled || len(all) == 1 {
		for _, st := range all {
			if s.pooled {
				st.args = append([]any{pgx.QueryExecModeExec}, st.args...)
			}
			rows, err := conn.Query(ctx, st.sql, st.args...)
			if err := readAll(rows, err, st.read); err != nil {
				return err
			}
		}
		return nil
	}
	b := new(pgx.Batch)
	for _, st := range all {
		b.Queue(st.sql, st.args...)
	}
	results := conn.SendBatch(ctx, b)
	defer results.Close()
	for _, st := range all {
		rows, err := results.Query()
		if err := readAll(rows, err, st.read); err != nil {
			return err
		}
	}
	return results.Close()
}

// rollBack undoes a transaction that may be open. After a failure the connection is
// closed when it is given back.
func (s *Store) rollBack(ctx context.Context, conn *pgx.Conn) {
	if conn.IsClosed() || conn.PgConn().TxStatus() == 'I' {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
	defer cancel()
	_, _ = conn.Exec(ctx, `ROLLBACK`, pgx.QueryExecModeExec)
}

func readAll(rows pgx.Rows, err error, read func(pgx.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	if read == nil {
		read = func(pgx.Rows) error { return nil }
	}
	if err := read(rows); err != nil {
		rows.Close()
		if e := rows.Err(); e != nil {
			return e
		}
		return err
	}
	rows.Close()
	return rows.Err() // the commit comes after the rows
}

// Close ends the store. Locks that are held stay until they expire. Close closes the pool
// only if Open made it. Later calls fail with driver.ErrClosed.
func (s *Store) Close() error {
	if s.closed.Swap(true) {
		return nil
	}
	s.left.Close(time.Second)
	s.sweep.close(s.patience)
	s.limitSweep.close(s.patience)
	s.batcher.close()
	s.limits.Close()
	s.hints.close()
	closed := make(chan struct{})
	go func() {
		defer close(closed)
		s.renewing.Close()
		if s.owned {
			s.pool.Close()
		}
	}()
	select {
	case <-closed:
		return nil
	case <-time.After(5 * time.Second):
		return fmt.Errorf("postgres: closing: requests are still under way")
	}
}

// fields splits the lines of the functions' answers: node, id, ticket, ttl.
func fields(text string) (lines [][]string) {
	for line := range strings.Lines(text) {
		if f := strings.Split(strings.TrimSuffix(line, "\n"), " "); len(f) == 4 {
			lines = append(lines, f)
		}
	}
	return lines
}
