// Package redislock has the names and signatures of github.com/bsm/redislock v0.9.4, and
// locks by Baton: a program changes only its import.
//
// What it keeps: Obtain is one attempt, or several by a RetryStrategy; a lock lasts for
// its TTL, is renewed only by Refresh, and ends by Release. A lock excludes, and is
// excluded by, locks of the original library and of Baton under the same key.
//
// What it adds: Lock.FencingToken for what the lock protects, and Lock.Attach, which
// makes the lock a Baton lease with renewal and contexts. "baton ls" shows the locks,
// with their Metadata as the owner. An attempt whose answer was lost is released, and
// does not hold the key for its TTL.
//
// What differs:
//   - The client must be a *redis.Client or a *redis.ClusterClient, and its server one
//     that store/redisstore accepts: a server that may evict locks is refused, with a
//     *redisstore.EvictionError.
//   - A TTL is at least 100ms and at most 24h, a key at most 512 bytes, Metadata at most
//     128 bytes of printable UTF-8. Otherwise the call fails without an effect.
//   - An attempt does not overtake waiters of Baton: it fails with ErrNotObtained while
//     they wait.
//   - Options.Token lets several callers hold one lock, as in the original library. A
//     caller of the original library with the same Token is excluded.
//   - Lock.TTL counts from when the request was sent, so it is never longer than the
//     server's.
//   - The value of the key on the server is Baton's: it does not contain Metadata.
package redislock

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/redisstore"
)

var (
	// ErrNotObtained says that another caller holds the lock or waits for it, or, for
	// Refresh, that the lock has ended.
	ErrNotObtained = errors.New("redislock: not obtained")

	// ErrLockNotHeld says that the lock to release has ended.
	ErrLockNotHeld = errors.New("redislock: lock not held")
)

// cleanup bounds the release after an attempt without an answer.
const cleanup = 5 * time.Second

// RedisClient is a client of go-redis: a *redis.Client or a *redis.ClusterClient. Calls
// with another one fail with an error.
type RedisClient interface {
	redis.Scripter
}

// Client obtains locks. All methods are safe for concurrent use. It needs no Close, and
// does not close the client of go-redis.
type Client struct {
	client RedisClient

	mu    sync.Mutex
	store *redisstore.Store // nil until a call has reached the server
}

// New makes a Client. It sends no request: the first call does, and fails if locks would
// not be safe on the server.
func New(client RedisClient) *Client { return &Client{client: client} }

// Store is the store of the locks: make a baton.Locker of it, for locks with a queue and
// automatic renewal. The first call of Store or Obtain asks the server for its version,
// role and eviction policy, for at most five seconds.
func (c *Client) Store() (*redisstore.Store, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.store != nil {
		return c.store, nil
	}
	client, ok := c.client.(redis.UniversalClient)
	if !ok {
		return nil, fmt.Errorf("redislock: %T cannot hold locks: use *redis.Client or *redis.ClusterClient", c.client)
	}
	store, err := redisstore.New(client, redisstore.Config{})
	if err != nil {
		return nil, err
	}
	c.store = store
	return store, nil
}

// Obtain is New(client).Obtain. It asks the server for its version, role and eviction
// policy each time: a program that locks often should keep a Client.
func Obtain(ctx context.Context, client RedisClient, key string, ttl time.Duration, opt *Options) (*Lock, error) {
	return New(client).Obtain(ctx, key, ttl, opt)
}

// Obtain obtains the lock of key for ttl. It makes one attempt, or several by
// opt.RetryStrategy until ctx ends, or for ttl if ctx has no deadline. opt may be nil.
//
// Errors: ErrNotObtained; the context's; those of driver.Locks.Acquire for an illegal
// argument and a server that does not answer; those of redisstore.New. After an error the
// caller holds no lock. The claim of a request without an answer is released in the
// background, unless opt.Token says that another caller may hold it.
func (c *Client) Obtain(ctx context.Context, key string, ttl time.Duration, opt *Options) (*Lock, error) {
	store, err := c.Store()
	if err != nil {
		return nil, err
	}
	if opt == nil {
		opt = &Options{}
	}
	l := &Lock{Client: c, store: store, token: opt.Token, metadata: opt.Metadata, shortest: ttl}
	l.claim = driver.Claim{Key: key, ID: id(opt.Token), Owner: opt.Metadata, Weight: driver.Whole, Capacity: driver.Whole}
	if opt.Token == "" {
		l.token = l.claim.ID
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, ttl)
		defer cancel()
	}
	retry := opt.RetryStrategy
	if retry == nil {
		retry = NoRetry()
	}
	for {
		sent := time.Now()
		g, err := store.Acquire(ctx, driver.Request{Claim: l.claim, TTL: ttl, Retry: opt.Token != ""})
		if err == nil {
			l.claim.Ticket, l.grant, l.until = g.Ticket, g, sent.Add(g.TTL)
			return l, nil
		}
		if !errors.Is(err, driver.ErrHeld) {
			if opt.Token == "" && (ctx.Err() != nil || errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable)) {
				go func() {
					ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanup)
					defer cancel()
					store.Release(ctx, l.claim) // if it fails, the lock expires
				}()
			}
			return nil, err
		}
		pause := retry.NextBackoff()
		if pause < 1 {
			return nil, ErrNotObtained
		}
		if err := sleep(ctx, pause); err != nil {
			return nil, err
		}
	}
}

// id makes the ID of a claim of a token, which may have any characters.
func id(token string) string {
	if token == "" {
		return driver.NewID()
	}
	sum := sha256.Sum256([]byte(token))
	return base64.RawURLEncoding.EncodeToString(sum[:])
}

// Lock is a lock that was obtained. All methods are safe for concurrent use.
type Lock struct {
	*Client
	store           *redisstore.Store
	token, metadata string

	mu       sync.Mutex
	claim    driver.Claim
	grant    driver.Grant
	until    time.Time
	shortest time.Duration // of the requested TTLs
}

func (l *Lock) now() driver.Claim {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.claim
}

// Key is the name of the lock.
func (l *Lock) Key() string { return l.claim.Key }

// Token is Options.Token, or a random one. It is no fencing token: see FencingToken.
func (l *Lock) Token() string { return l.token }

// Metadata is Options.Metadata.
func (l *Lock) Metadata() string { return l.metadata }

// FencingToken is positive, and higher than that of every earlier lock on the key, of
// this package or of Baton. Pass it to what the lock protects: package guard checks it.
// Callers with one Options.Token share a lock, and may share a fencing token.
func (l *Lock) FencingToken() int64 {
	_, token, _ := baton.ReadHandle(l.handle()) // cannot fail for a held grant
	return token
}

func (l *Lock) handle() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return baton.ClaimHandle(l.claim, l.grant, l.shortest)
}

// Attach makes the lock a lease of locks, with renewal and contexts: see
// baton.Locker.Attach for its errors. locks must be made of Client.Store, or of another
// store over the same server without a prefix. Afterwards this Lock has ended, as Refresh
// and Release will say; Lease.Unlock unlocks.
func (l *Lock) Attach(ctx context.Context, locks *baton.Locker) (*baton.Lease, error) {
	return locks.Attach(ctx, l.handle())
}

// TTL asks the server whether the lock is held, and returns its least remaining time, or
// 0 if it has ended.
func (l *Lock) TTL(ctx context.Context) (time.Duration, error) {
	c := l.now()
	err := l.store.Rename(ctx, c, c.Owner) // changes nothing, and fails if the lock has ended
	if errors.Is(err, driver.ErrLost) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	return l.left(), nil
}

// Refresh makes the lock last for ttl from now. Its error is ErrNotObtained if the lock
// has ended. If the server does not answer, Refresh tries again by opt.RetryStrategy,
// until the lock may have ended; after that error the lock may last for either TTL. A
// lock keeps its Token and Metadata: others in opt are refused with ErrOption.
func (l *Lock) Refresh(ctx context.Context, ttl time.Duration, opt *Options) error {
	retry := NoRetry()
	if opt != nil {
		if opt.Metadata != "" && opt.Metadata != l.metadata || opt.Token != "" && opt.Token != l.token {
			return fmt.Errorf("redislock: refresh %q: %w", l.Key(), ErrOption)
		}
		if opt.RetryStrategy != nil {
			retry = opt.RetryStrategy
		}
	}
	if err := check.TTL(l.Key(), ttl, l.store.Traits()); err != nil {
		return err
	}
	for {
		sent := time.Now()
		r := l.store.Renew(ctx, []driver.Claim{l.now()}, ttl)[0]
		switch r.State {
		case driver.Held:
			l.mu.Lock()
			defer l.mu.Unlock()
			l.until, l.shortest = sent.Add(r.Grant.TTL), min(l.shortest, ttl)
			return nil
		case driver.Lost, driver.Waiting: // this package never waits in the queue
			return ErrNotObtained
		}
		l.mu.Lock() // the request may have taken effect
		if until := sent.Add(ttl); until.Before(l.until) {
			l.until = until
		}
		l.shortest = min(l.shortest, ttl)
		l.mu.Unlock()
		pause := retry.NextBackoff()
		if pause < 1 || l.left() <= pause || sleep(ctx, pause) != nil {
			return r.Err
		}
	}
}

// left is the least remaining time of the lock.
func (l *Lock) left() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	return max(0, time.Until(l.until))
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}

// Release ends the lock, and lets the store grant the next waiter. Its error is
// ErrLockNotHeld if the lock had ended before the call, otherwise the store's, after
// which the lock may last for its TTL.
func (l *Lock) Release(ctx context.Context) error {
	if l == nil {
		return ErrLockNotHeld
	}
	held := l.left() > 0
	err := l.store.Release(ctx, l.now())
	if errors.Is(err, driver.ErrLost) {
		if held && l.left() == 0 { // it may have expired since
			return nil
		}
		return ErrLockNotHeld
	}
	return err
}
