// Package batoncertmagic puts the locks of github.com/caddyserver/certmagic into any
// store of Baton, with the certificates in any storage.
//
//	storage := batoncertmagic.New(&certmagic.FileStorage{Path: "/shared"}, locks, "certs/")
//	certmagic.Default.Storage = storage
//
// Of all instances that need the same certificate one obtains or renews it; the others
// wait and find it in the storage. If an instance crashes, the next one gets the lock
// within the TTL of locks. An instance that tries to obtain a certificate for hours, with
// pauses, keeps the lock as long as it lives.
//
// # When a lock is lost
//
// certmagic does not let a lock stop an issuer, and its storage gets no tokens. If a
// lease is lost while an issuer works, another instance may obtain the same certificate
// meanwhile, and both store theirs. Later calls report the loss: RenewLockLease, which
// certmagic calls before each attempt, locks again or fails, and Unlock fails. A lease is
// lost when its store is out of reach for the TTL, or when the process is stopped for
// that long.
package batoncertmagic

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/caddyserver/certmagic"

	"github.com/batonhq/baton"
)

// A Storage is a certmagic.Storage with the locks of Baton. It has both optional
// interfaces of certmagic, TryLocker and LockLeaseRenewer. All instances that share
// certificates must have the same store and prefix. Methods are safe for concurrent use,
// as far as those of the wrapped storage are.
type Storage struct {
	// Storage is the wrapped storage, with the certificates. Its own locks are not used.
	// It must not be changed.
	certmagic.Storage

	locks  *baton.Locker
	prefix string

	mu    sync.Mutex
	names map[string]*name // those that are locked or wanted
}

// A name is a lock of certmagic. Unlock gets only the name, so a process has one lease on
// it at a time until Unlock, even after a loss.
type name struct {
	turn  chan struct{} // full while a caller of this process has the lock or asks for it
	users int           // callers that have or want the turn
	lease *baton.Lease  // nil while there is none
}

var (
	_ certmagic.Storage          = (*Storage)(nil)
	_ certmagic.TryLocker        = (*Storage)(nil)
	_ certmagic.LockLeaseRenewer = (*Storage)(nil)
)

// New makes a Storage that locks in the store of locks. The key of a lock is the prefix
// and certmagic's name, such as "certs/issue_cert_example.com". The TTL of locks is how
// long no instance can obtain a certificate after one crashed while it obtained that.
func New(storage certmagic.Storage, locks *baton.Locker, prefix string) *Storage {
	return &Storage{Storage: storage, locks: locks, prefix: prefix, names: make(map[string]*name)}
}

// String is for the logs of certmagic. It names the wrapped storage.
func (s *Storage) String() string {
	if named, ok := s.Storage.(fmt.Stringer); ok {
		return named.String()
	}
	return fmt.Sprintf("%T", s.Storage)
}

// Lock implements certmagic.Locker: it waits until ctx ends. Callers of this process wait
// in the order of their calls. Its errors are those of baton's Lock.
func (s *Storage) Lock(ctx context.Context, lockName string) error {
	n := s.enter(lockName)
	select {
	case n.turn <- struct{}{}:
	case <-ctx.Done():
		s.leave(lockName, n)
		return fmt.Errorf("key %q: another caller of this process has the lock: %w", s.prefix+lockName, ctx.Err())
	}
	return s.acquire(ctx, s.locks.Lock, lockName, n)
}

// TryLock implements certmagic.TryLocker. It is false without an error if another caller
// has the lock, or waits for it.
func (s *Storage) TryLock(ctx context.Context, lockName string) (bool, error) {
	n := s.enter(lockName)
	select {
	case n.turn <- struct{}{}:
	default:
		s.leave(lockName, n)
		return false, nil
	}
	err := s.acquire(ctx, s.locks.TryLock, lockName, n)
	if errors.Is(err, baton.ErrHeld) {
		return false, nil
	}
	return err == nil, err
}

// acquire asks the store, for the caller with the turn.
func (s *Storage) acquire(ctx context.Context, lock func(context.Context, string, ...baton.Option) (*baton.Lease, error), lockName string, n *name) error {
	lease, err := lock(ctx, s.prefix+lockName)
	if err != nil {
		<-n.turn
		s.leave(lockName, n)
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	n.lease = lease
	return nil
}

// Unlock implements certmagic.Locker. A *baton.LostError says that the lock was lost
// before. Other errors are those of Lease.Unlock, after which the lock expires within the
// TTL. Unlock need not be repeated after an error; without a lock it does nothing,
// because certmagic.CleanUpOwnLocks repeats failed unlocks.
func (s *Storage) Unlock(_ context.Context, lockName string) error {
	s.mu.Lock()
	n := s.names[lockName]
	if n == nil || n.lease == nil {
		s.mu.Unlock()
		return nil
	}
	lease := n.lease
	n.lease = nil
	s.mu.Unlock()
	err := lease.Unlock()
	<-n.turn
	s.leave(lockName, n)
	return err
}

// RenewLockLease implements certmagic.LockLeaseRenewer. Baton renews leases itself, so
// the duration is ignored. If the lease was lost it locks again, without waiting.
// certmagic calls it before each attempt and then checks that the certificate is still
// needed; without the new lock it would continue without one, or never again. If another
// instance has the lock, for example, it fails with the *baton.LostError, and can be
// called again.
func (s *Storage) RenewLockLease(ctx context.Context, lockName string, _ time.Duration) error {
	key := s.prefix + lockName
	s.mu.Lock()
	n := s.names[lockName]
	var lease *baton.Lease
	if n != nil {
		lease = n.lease
	}
	s.mu.Unlock()
	if lease == nil {
		return fmt.Errorf("key %q: nothing to renew: not locked by this storage", key)
	}
	lost := lease.Err()
	if lost == nil {
		return nil
	}
	_ = lease.Unlock() // the store may still keep it, after MaxHold
	again, err := s.locks.TryLock(ctx, key)
	if err != nil {
		return fmt.Errorf("%w; locking again: %w", lost, err)
	}
	s.mu.Lock()
	if n.lease == lease {
		n.lease = again
		s.mu.Unlock()
		return nil
	}
	s.mu.Unlock() // CleanUpOwnLocks came in between
	return errors.Join(fmt.Errorf("key %q: unlocked while it was renewed", key), again.Unlock())
}

func (s *Storage) enter(lockName string) *name {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := s.names[lockName]
	if n == nil {
		n = &name{turn: make(chan struct{}, 1)}
		s.names[lockName] = n
	}
	n.users++
	return n
}

func (s *Storage) leave(lockName string, n *name) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n.users--; n.users == 0 {
		delete(s.names, lockName)
	}
}
