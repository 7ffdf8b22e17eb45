// Package sqlitestore keeps locks, rate limits and records of operations in a SQLite
// file that the processes of one machine share. Nothing has to be installed or run.
//
// The file may be an application's own database: the tables are called baton_*, and the
// file is switched to write-ahead logging. Beside it stand the two files of that log
// and a directory FILE-wake with the sockets by which processes wake each other. Remove
// them together, when no process uses them.
//
// # What it promises
//
// Everything that package driver asks for, between processes of one machine
// and one kernel, first come, first served. What was granted is on the disk
// before it is answered, and what was released stands as well through the crash
// of any process. Expiry follows a clock that counts suspension and cannot be set; a
// reboot ends every lock. Tokens rise through release, expiry, sweeping, reboot, and a
// wall clock that is set back.
//
// Several locks that are free are granted by one transaction (AcquireAll, which
// baton.LockAll tries first): all or none, also when the process is killed in the
// middle.
//
// # What it does not
//
//   - Network and FUSE file systems are refused: their file locks do not keep
//     processes apart. Neither can virtual machines or containers under
//     another kernel share a file.
//   - A process that is stopped (SIGSTOP) within the fraction of a
//     millisecond that it writes holds up all others until it goes on.
//   - Closing any descriptor of the file that the program opened by itself,
//     to read or to copy it, drops the locks of this process that keep the
//     log from being removed under it. The store asks the SQLite library for
//     locks that survive this; that works only if nothing in the process used
//     the library before. Copy the file with VACUUM INTO or another process.
//   - Root may work on another user's database (sudo, a job of the system). On Linux,
//     in a directory that is not root's, the store then works with the rights of the
//     database's owner. On every system it refuses what that owner may not have made
//     there (ErrForeign). On other systems SQLite opens its own files by their names, as
//     root: there root should keep to directories that only root may write.
package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/sqlstore"
)

// Store is a driver.Store, driver.Watcher, driver.Inspector, driver.Downgrader,
// driver.Mover, driver.Renamer, driver.Together, driver.Examiner, limits.Store, limits.Overrider and
// driver.Records on one file. All methods are safe for concurrent use, and several
// Stores may be open on one file in one process.
//
// Errors about the file are *FileError.
type Store struct {
	path string // absolute
	file os.FileInfo
	opts options

	beside  *os.File // the directory FILE-wake
	foreign bool     // root works in another user's directory: see asOwner

	turn turnstile
	db   *sql.DB // one connection, the writer
	conn *sql.Conn
	stmt [numStatements]*sql.Stmt
	tx   tx
	lazy bool // commits do not wait for the disk: see sync

	readers *sql.DB // opened when first needed by database/sql

	watchers sqlstore.Watchers
	mail     *mailbox

	mu     sync.Mutex
	queue  []*op
	work   sync.Cond     // on mu: the queue has something, or the store was closed
	served chan struct{} // closed when the goroutine that serves the queue has ended
	closed bool
	broken error // why the file cannot be used any more

	sweeper sweeper
	limits  limiter
	checked int64 // when the machine was last compared, on the store's clock
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

// options are what tests replace.
type options struct {
	clock    func() int64 // the store's clock
	wall     func() int64 // microseconds since 1970
	boot     func() (string, error)
	shifted  func() bool
	remote   func(dir string) (string, error)
	around   func(path string) surroundings
	sweepAge time.Duration
	sweepGap int           // commits between two steps of the sweep
	early    int           // commits, or limits that are changed, until the first one
	deaf     bool          // no sockets
	poll     time.Duration // how often to look for hints that were lost
	over     func()        // an opening has ended, whether its caller still waits or not
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
		early:    1 + rand.IntN(16), // so that programs which run for a moment do their share
		poll:     50 * time.Millisecond,
		over:     func() {},
	}
}

// Open opens the locks in the file at path. A missing file is made, readable by its
// owner alone, as are missing directories above it. The context bounds Open only; an
// Open that gave up while another process was writing does not touch the database
// afterwards.
//
// A *FileError wraps ErrNotDatabase, ErrDirectory, ErrReadOnly, ErrFull,
// ErrIO, ErrCorrupt, ErrEncoding, ErrNetworkFS, ErrTimeNamespace, ErrNewerSchema,
// ErrForeign or ErrPlatform.
func Open(ctx context.Context, path string) (*Store, error) { return openWith(ctx, path) }

// openWith is Open with what tests change.
func openWith(ctx context.Context, path string, change ...func(*options)) (*Store, error) {
	o := defaults()
	for _, set := range change {
		set(&o)
	}
	type result struct {
		s   *Store
		err error
	}
	// Another process may be stopped while it writes, so this may last.
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

// gaveUp is the error of an opening that took too long.
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
	MinTTL:    10 * time.Millisecond,
	MaxTTL:    365 * 24 * time.Hour,
}

// Traits implements driver.Locks.
func (s *Store) Traits() driver.Traits { return traits }

// Acquire implements driver.Locks. An exclusive lock that is free costs one
// statement that changes one row.
func (s *Store) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	if err := check.Request(r, traits); err != nil {
		return driver.Grant{}, err
	}
	var g driver.Grant
	var refused error
	o := &op{run: func(t *tx) (failed error) {
		s.sweeper.startAt(r.Key)
		g, refused, failed = sqlstore.Acquire(t, r, &t.fx)
		return failed
	}}
	if r.Exclusive() {
		o.fast = func(t *tx) (done bool, err error) {
			s.sweeper.startAt(r.Key)
			g, done, err = t.fastAcquire(r)
			refused = nil // by a run that was undone
			return done, err
		}
	}
	err := s.ask(ctx, o)
	if err == nil {
		err = refused
	}
	if err != nil {
		return driver.Grant{}, err
	}
	if g.Waiting {
		s.watchers.Waits(r.Key, r.ID, g.Ticket)
	}
	return g, nil
}

// Renew implements driver.Locks, by one statement for all locks and one for
// all claims, in one transaction.
func (s *Store) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) []driver.Renewal {
	b := sqlstore.NewBatch(claims, ttl, traits)
	if b.Legal() {
		if err := s.do(ctx, func(t *tx) error { return t.renew(b, ttl) }); err != nil {
			r := driver.Renewal{Err: err}
			if errors.Is(err, ErrReplaced) || errors.Is(err, ErrOtherMachine) {
				r.State = driver.Lost // other processes no longer see what this file says
			}
			return b.Failed(r)
		}
	}
	answers := b.Done()
	s.watchers.Answered(claims, answers)
	return answers
}

// Release implements driver.Locks. An exclusive lock without waiters costs one
// statement that changes one row, and does not wait for the disk; otherwise the next
// waiters are granted in the same commit.
func (s *Store) Release(ctx context.Context, c driver.Claim) error {
	if err := check.Claim(c); err != nil {
		return err
	}
	var refused error
	err := s.ask(ctx, &op{
		lazy: true,
		fast: func(t *tx) (bool, error) {
			refused = nil // by a run that was undone
			return t.fastRelease(c)
		},
		run: func(t *tx) (failed error) {
			refused, failed = sqlstore.Release(t, c, &t.fx)
			return failed
		},
	})
	if err != nil {
		return err
	}
	return refused
}

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := check.Claim(c); err != nil {
		return driver.Grant{}, err
	}
	if err := check.TTL(c.Key, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	return s.grant(ctx, func(t *tx) (driver.Grant, error, error) {
		return sqlstore.Downgrade(t, c, ttl.Microseconds(), &t.fx)
	})
}

// Move implements driver.Mover.
func (s *Store) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	if err := check.Move(c, id, owner, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	return s.grant(ctx, func(t *tx) (driver.Grant, error, error) {
		return sqlstore.Move(t, c, id, owner, ttl.Microseconds(), &t.fx)
	})
}

// Rename implements driver.Renamer.
func (s *Store) Rename(ctx context.Context, c driver.Claim, owner string) error {
	if err := check.Rename(c, owner); err != nil {
		return err
	}
	var refused error
	err := s.do(ctx, func(t *tx) (failed error) {
		refused, failed = sqlstore.Rename(t, c, owner, &t.fx)
		return failed
	})
	if err != nil {
		return err
	}
	return refused
}

// grant runs act in a transaction and returns what it granted, or why it refused.
func (s *Store) grant(ctx context.Context, act func(*tx) (g driver.Grant, refused, failed error)) (driver.Grant, error) {
	var g driver.Grant
	var refused error
	err := s.do(ctx, func(t *tx) (failed error) {
		g, refused, failed = act(t)
		return failed
	})
	if err == nil {
		err = refused
	}
	if err != nil {
		return driver.Grant{}, err
	}
	return g, nil
}

// Watch implements driver.Watcher. Within the process a hint is a call; from
// another process it is a datagram, and a poll of at most 50 milliseconds
// stands behind it.
func (s *Store) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	return s.watchers.Watch(c, wake)
}

// Close implements driver.Store. Requests that have not begun fail with
// driver.ErrClosed; Close waits for one that has. Locks stay until they expire.
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
