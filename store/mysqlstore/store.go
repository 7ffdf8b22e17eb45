package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/contended"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/settling"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Store keeps locks (driver.Store, with all abilities of package driver but
// driver.Together), rate limits (limits.Store, limits.Lister, limits.Overrider) and
// records (driver.Records, driver.RecordLister) in one database. All methods are safe for
// concurrent use.
type Store struct {
	records
	overrides

	single *sql.DB // for single statements
	slow   *sql.DB // for transactions
	apart  *sql.DB // for renewals of held locks
	multi  bool    // slow takes several statements at once
	own    bool    // Open made the pools
	schema string  // the name of the database
	remote bool    // on another machine, without TLS
	guard  string  // a condition: a single statement is committed

	fast     fast
	opts     options
	watchers sqlstore.Watchers
	renewal  *sqlstore.Renewals // of held locks
	confirm  *sqlstore.Renewals // of positions
	limits   *sqlstore.Limits
	changed  atomic.Int64 // rows of limits since the last sweep
	inserted atomic.Int64 // rows of new keys since the last sweep
	used     atomic.Bool  // since the last sweep
	early    atomic.Bool  // the first request starts a sweep at once
	kick     chan string  // the key to begin at
	kept     atomic.Bool  // this process has made texts

	warm    sync.Once
	quit    chan struct{} // closed by Close
	life    context.Context
	end     context.CancelFunc
	serving sync.WaitGroup
	poller  poller
	left    *sqlstore.Abandoned // of attempts to acquire
	moved   settling.Mark
	hot     contended.Keys // keys that the fast path cannot serve

	mu     sync.Mutex
	queues map[string]*keyQueue // of keys with a transaction under way, or about to begin
	closed bool
}

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Mover      = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Clock      = (*Store)(nil)
	_ driver.Examiner   = (*Store)(nil)
)

// options are for tests.
type options struct {
	sweepEvery time.Duration
	sweepAge   time.Duration

	// stall is how long a client may leave a transaction idle, in seconds. The server
	// then ends the connection of a process that was stopped in the middle and undoes the
	// transaction, so that other processes can lock the row. It is also how long a
	// statement waits for a row.
	stall int

	// early says whether the first request of a store starts a sweep at once, as it must
	// sometimes for short-lived programs.
	early func() bool

	repeats []time.Duration // see sqlstore.Abandoned
}

var standard = options{
	sweepEvery: 10 * time.Second, sweepAge: 10 * time.Minute, stall: 2,
	early:   func() bool { return rand.IntN(16) == 0 },
	repeats: sqlstore.Repeats,
}

// New returns a store on a pool that the caller opened with
// github.com/go-sql-driver/mysql, and closes after the Store. The tables must exist: see
// Migrate. A contended lock costs more round trips than on a Store from Open, because the
// pool may not take several statements at once.
//
// Give the pool RejectReadOnly: without it, a connection to a server that a failover has
// made read-only stays in use.
//
// The program must return connections to the pool as it got them. On a connection with
// autocommit off the store does nothing that would not be committed. A connection in a
// transaction is closed, which undoes that transaction: on MariaDB always; on MySQL,
// which does not show the transaction, when the store's next transaction begins on it.
// Until then a lock that is granted on it can be lost with the connection.
//
// The context bounds New only. An error wraps driver.ErrUnavailable if the server cannot
// be reached, ErrVersion if it is too old, ErrSchema if the tables are missing or not
// those of this version, ErrAutocommit if the pool's sessions begin transactions by
// themselves, and ErrCompletion if they do so with each commit.
func New(ctx context.Context, db *sql.DB) (*Store, error) {
	return build(ctx, &Store{single: db, slow: db, apart: db, opts: standard})
}

func build(ctx context.Context, s *Store) (*Store, error) {
	s.life, s.end = context.WithCancel(context.Background())
	s.quit, s.kick = make(chan struct{}), make(chan string, 1)
	s.early.Store(s.opts.early())
	texts := kept.Texts{Store: traits.Store, Swap: s.swapText, List: s.listTexts}
	s.records, s.overrides = kept.NewRecords(texts), kept.NewOverrides(texts)
	s.limits = s.newLimits()
	s.queues = make(map[string]*keyQueue)
	s.left = sqlstore.NewAbandoned(s.opts.repeats, func(ctx context.Context, c driver.Claim) error {
		ctx, cancel := context.WithTimeout(ctx, patience)
		defer cancel()
		err := s.release(ctx, c)
		if errors.Is(err, driver.ErrClosed) {
			err = s.releaseAlone(ctx, c)
		}
		return err
	})
	s.renewal = sqlstore.NewRenewals(most(s.apart), s.renewWith(s.apart))
	s.confirm = sqlstore.NewRenewals(max(1, most(s.slow)/2), s.renewWith(s.slow))
	if err := s.begin(ctx); err != nil {
		s.end()
		return nil, err
	}
	s.poller.kick = make(chan struct{}, 1)
	s.watchers.Changed = s.poller.changed
	s.serving.Go(s.poll)
	s.serving.Go(s.sweep)
	return s, nil
}

// most is the number of concurrent requests with renewals on a pool: no more than its
// connections, and few enough that renewals share them.
func most(pool *sql.DB) int {
	const few = 4
	if n := pool.Stats().MaxOpenConnections; n > 0 {
		return min(n, few)
	}
	return few
}

var (
	// ErrAutocommit says that the sessions of a pool do not commit by themselves.
	ErrAutocommit = errors.New("autocommit is off: remove autocommit=0 from the DSN")

	// ErrCompletion says that the end of a transaction in a session of a pool begins
	// another one, or ends the session.
	ErrCompletion = errors.New("completion_type is not NO_CHAIN, so that a commit leaves a transaction open or ends the session: add completion_type=0 to the DSN")
)

// A program may return a connection to its pool with autocommit off, or in a transaction.
// A statement on it would never be committed. This condition prevents that without a
// round trip. MySQL does not show whether there is a transaction.
const (
	guardMariaDB = "@@autocommit=1 AND @@in_transaction=0"
	guardMySQL   = "@@autocommit=1 AND @@completion_type='NO_CHAIN'"
)

func (s *Store) begin(ctx context.Context) error {
	var autocommit bool
	var completion, version string
	var schema sql.NullString
	if err := s.single.QueryRowContext(ctx, "SELECT @@autocommit, @@completion_type, VERSION(), DATABASE()").Scan(&autocommit, &completion, &version, &schema); err != nil {
		return opening(ctx, err)
	}
	switch {
	case s.own: // no other code uses the connections
		s.guard = "1=1"
	case isMariaDB(version):
		s.guard = guardMariaDB
	default:
		s.guard = guardMySQL
	}
	old := judgeVersion(version)
	switch {
	case old != nil:
		return &refusal{old[0], ErrVersion}
	case !autocommit:
		return fmt.Errorf("mysql: %w", ErrAutocommit)
	case completion != "NO_CHAIN":
		return fmt.Errorf("mysql: %w", ErrCompletion)
	case schema.String == "":
		return errors.New("mysql: no database is selected: name it in the DSN")
	}
	s.schema = schema.String
	if err := checkSchema(ctx, s.single); err != nil {
		return err
	}
	if s.own {
		return nil
	}
	if err := s.fast.prepare(ctx, s.single, s.guard); err != nil {
		return opening(ctx, err)
	}
	return nil
}

// opening makes an error of New, Open or Migrate.
func opening(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return fmt.Errorf("mysql: %w: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
	return failure(err, false)
}

var traits = driver.Traits{
	Store:     "mysql",
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

// ready is called first by every request.
func (s *Store) ready(ctx context.Context) error {
	if s.isClosed() {
		return driver.ErrClosed
	}
	s.used.Store(true)
	return ctx.Err()
}

func (s *Store) isClosed() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.closed
}

func joinUnknown(ctx context.Context) error { return errors.Join(driver.ErrUnknown, ctx.Err()) }

// closeWithin is how long Close waits for transactions under way.
const closeWithin = 5 * time.Second

// Close implements driver.Store. It waits for transactions that have begun, for at most a
// few seconds. Locks stay until they expire.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.limits.Close()
	for _, l := range s.queues {
		l.Close()
	}
	s.mu.Unlock()
	close(s.quit)

	ended := make(chan struct{})
	go func() {
		s.left.Close(closeWithin)
		s.limits.Wait()
		s.serving.Wait()
		close(ended)
	}()
	t := time.NewTimer(closeWithin)
	defer t.Stop()
	select {
	case <-ended:
	case <-t.C:
	}
	s.end()
	s.fast.close()
	if !s.own {
		return nil
	}
	return errors.Join(s.single.Close(), s.slow.Close(), s.apart.Close())
}
