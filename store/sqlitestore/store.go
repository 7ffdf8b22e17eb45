package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Store keeps locks (driver.Store, with all abilities of package driver but driver.Clock),
// rate limits (limits.Store, limits.Lister, limits.Overrider) and records (driver.Records,
// driver.RecordLister) in one file. All methods are safe for concurrent use. Several Stores
// may be open on one file in one process.
//
// Errors about the file are *FileError.
type Store struct {
	path string // absolute
	file os.FileInfo
	opts options
	records
	overrides

	beside *os.File // the directory FILE-wake

	turn turnstile
	db   *sql.DB // one connection, the writer
	conn *sql.Conn
	stmt [numStatements]*sql.Stmt
	tx   tx
	lazy bool // the present commits do not wait for the disk: see sync

	readers *sql.DB // opens connections when they are needed

	watchers sqlstore.Watchers
	mail     *mailbox

	mu     sync.Mutex
	queue  []*op
	work   sync.Cond     // on mu: the queue has something, or the store was closed
	served chan struct{} // closed when serve has returned
	closed bool
	broken error // why the file can no longer be used

	sweeper sweeper
	limits  limiter
	checked int64 // when check last ran, on the store's clock

	size     int64 // of the database in bytes, when check last ran
	outgrown bool  // the database has pages that are only in the log: see keepRoom
}

var (
	_ driver.Store      = (*Store)(nil)
	_ driver.Watcher    = (*Store)(nil)
	_ driver.Inspector  = (*Store)(nil)
	_ driver.Downgrader = (*Store)(nil)
	_ driver.Mover      = (*Store)(nil)
	_ driver.Renamer    = (*Store)(nil)
	_ driver.Together   = (*Store)(nil)
	_ driver.Examiner   = (*Store)(nil)
	_ driver.Refusal    = (*FileError)(nil)
)

// options are for tests.
type options struct {
	clock    func() int64 // the store's clock
	wall     func() int64 // microseconds since 1970
	boot     func() (string, error)
	shifted  func() bool
	remote   func(dir string) (string, error)
	around   func(path string) surroundings
	sweepAge time.Duration
	sweepGap int           // commits between two steps of the sweep
	early    int           // commits, or changed limits, until the first step
	deaf     bool          // no sockets
	poll     time.Duration // the period in which to look for lost hints
	over     func()        // called when an opening has ended, even if its caller has given up
}

func defaults() options {
	return options{
		clock:    bootClock,
		wall:     func() int64 { return time.Now().UnixMicro() },
		boot:     bootID,
		shifted:  shiftedClock,
		remote:   remoteFS,
		around:   lookAround,
		sweepAge: time.Minute,
		sweepGap: 64,
		early:    1 + rand.IntN(16), // random, so that short-lived programs do their share
		poll:     50 * time.Millisecond,
		over:     func() {},
	}
}

// Open opens the locks in the file at path. It makes a missing file, readable by its
// owner alone, and missing directories above it. The context bounds Open only. An Open
// that gave up while another process was writing does not change the database afterwards.
//
// A *FileError wraps ErrNotDatabase, ErrDirectory, ErrReadOnly, ErrFull,
// ErrIO, ErrCorrupt, ErrEncoding, ErrNetworkFS, ErrTimeNamespace, ErrNewerSchema,
// ErrForeign or ErrPlatform.
func Open(ctx context.Context, path string) (*Store, error) { return openWith(ctx, path) }

// openWith is Open with options for tests.
func openWith(ctx context.Context, path string, change ...func(*options)) (*Store, error) {
	o := defaults()
	for _, set := range change {
		set(&o)
	}
	type result struct {
		s   *Store
		err error
	}
	// This may last: another process may be stopped in its write.
	done := make(chan result)
	go func() {
		defer o.over()
		s, err := open(ctx, path, o)
		select {
		case done <- result{s, err}:
		case <-ctx.Done():
			if s != nil {
				s.Close()
			}
		}
	}()
	select {
	case r := <-done:
		return r.s, r.err
	case <-ctx.Done():
		return nil, gaveUp(ctx, path)
	}
}

func gaveUp(ctx context.Context, path string) error {
	return fmt.Errorf("sqlite store %s: opening: %w", path, context.Cause(ctx))
}

var traits = driver.Traits{
	Store:     "sqlite",
	Fencing:   true,
	FIFO:      true,
	Shared:    true,
	Permits:   true,
	Durable:   true,
	Processes: true,
	MinTTL:    100 * time.Millisecond, // a commit may take as long as a shorter TTL
	MaxTTL:    365 * 24 * time.Hour,
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return traits }

// Close implements driver.Store. Requests that have not begun fail with driver.ErrClosed;
// Close waits for one that has. Locks stay until they expire.
func (s *Store) Close() error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	queue := s.queue
	s.queue = nil
	s.mu.Unlock()
	s.work.Signal()

	for _, o := range queue {
		o.done <- driver.ErrClosed
	}
	select {
	case <-s.served:
		return s.shut()
	case <-time.After(5 * time.Second):
		go func() {
			<-s.served
			s.shut()
		}()
		return fmt.Errorf("sqlite store %s: closing: another process has been in the middle of a write for over five seconds, it may be stopped", s.path)
	}
}
