package zkstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bootclock"
)

// A trip is one request to the server.
type trip struct {
	link *link
	sent time.Time
	done <-chan struct{} // closed when the client is done with the request
	sure time.Duration   // see Session.commit
}

// send makes one request of the client, which knows no contexts, on a separate
// goroutine. If ctx ends first the request goes on without its caller; trip.done tells
// when it is over.
//
// A request is refused while there is no session: the client would keep it in a queue
// and send it in the next session. A session may still end between this check and the
// request, so an answer counts only if the session is the one that the request was
// meant for.
//
// write says that the request changes something, so that an outcome that is not known
// is driver.ErrUnknown. Errors of the server are returned as they are.
func send[T any](ctx context.Context, s *Store, write bool, do func(*zk.Conn) (T, error)) (v T, t trip, err error) {
	var none T
	if err := ctx.Err(); err != nil {
		return none, t, err
	}
	t = trip{link: s.session.link()}
	if !t.link.up {
		return none, t, unavailable(errNoSession)
	}
	done := make(chan struct{})
	t.done, t.sent = done, bootclock.Now()
	var got T
	var failed error
	s.workers.Go(func() {
		got, failed = do(s.conn)
		close(done)
	})
	select {
	case <-done:
	case <-ctx.Done():
		if write {
			return none, t, fmt.Errorf("zookeeper: %w: %w", driver.ErrUnknown, ctx.Err())
		}
		return none, t, ctx.Err()
	}
	if err = s.outcome(t, write, failed); err != nil && !answer(err) {
		return none, t, err
	}
	return got, t, err
}

// outcome turns the result of a request that the client is done with into an error of
// the store.
func (s *Store) outcome(t trip, write bool, err error) error {
	if s.session.link().id != t.link.id {
		err = errors.Join(errReplaced, err)
	}
	switch {
	case err == nil || answer(err):
		s.session.active(t.link, t.sent)
		return err
	case !write || errors.Is(err, zk.ErrNoServer): // never sent
		return unavailable(err)
	}
	return fmt.Errorf("zookeeper: %w: %w", driver.ErrUnknown, err)
}

var (
	errNoSession = errors.New("no server answers")
	errReplaced  = errors.New("the session has ended")
)

// answer reports whether the error is an answer of the server.
func answer(err error) bool {
	switch err {
	case zk.ErrNoNode, zk.ErrNodeExists, zk.ErrNotEmpty, zk.ErrNoAuth, zk.ErrBadVersion, zk.ErrInvalidACL, zk.ErrAuthFailed,
		zk.ErrNoChildrenForEphemerals, zk.ErrBadArguments, zk.ErrAPIError, zk.ErrInvalidPath:
		return true
	}
	return false
}

func unavailable(err error) error {
	return fmt.Errorf("zookeeper: %w: %w", driver.ErrUnavailable, err)
}

// refused makes the error of an answer that the caller has no use for.
func refused(what, path string, err error) error {
	switch err {
	case nil:
		return nil
	case zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL:
		return fmt.Errorf("zookeeper refuses to %s %s: the access list does not allow it: give user and password of one who may", what, path)
	}
	if answer(err) {
		return fmt.Errorf("zookeeper refuses to %s %s: %w", what, path, err)
	}
	return err
}

// multi sends a transaction. failed is the index of the operation that was refused, or
// -1.
func (s *Store) multi(ctx context.Context, ops []any) (r []zk.MultiResponse, t trip, failed int, err error) {
	r, t, err = send(ctx, s, true, func(c *zk.Conn) ([]zk.MultiResponse, error) { return c.Multi(ops...) })
	if err == nil || err == zk.ErrAPIError {
		t.sure = s.session.commit(t.link, t.sent)
	}
	return r, t, refusedAt(r, err), err
}

// refusedAt is the index of the operation for which a transaction was refused, or -1.
func refusedAt(r []zk.MultiResponse, err error) int {
	if err == nil {
		return -1
	}
	return slices.IndexFunc(r, func(one zk.MultiResponse) bool { return one.Error != nil })
}

func (s *Store) children(ctx context.Context, path string) (names []string, stat *zk.Stat, err error) {
	type listing struct {
		names []string
		stat  *zk.Stat
	}
	l, _, err := send(ctx, s, false, func(c *zk.Conn) (listing, error) {
		names, stat, err := c.Children(path)
		return listing{names, stat}, err
	})
	return l.names, l.stat, err
}

func (s *Store) exists(ctx context.Context, path string) (*zk.Stat, error) {
	stat, _, err := send(ctx, s, false, func(c *zk.Conn) (*zk.Stat, error) {
		ok, stat, err := c.Exists(path)
		if err == nil && !ok {
			err = zk.ErrNoNode
		}
		return stat, err
	})
	return stat, err
}

type nodeData struct {
	data []byte
	stat *zk.Stat
}

func (s *Store) get(ctx context.Context, path string) (nodeData, error) {
	v, _, err := send(ctx, s, false, func(c *zk.Conn) (nodeData, error) {
		data, stat, err := c.Get(path)
		return nodeData{data, stat}, err
	})
	return v, err
}

// sync returns when the server of this session knows everything that was committed
// before, and has sent us all watch events about it.
func (s *Store) sync(ctx context.Context) error {
	_, _, err := send(ctx, s, false, func(c *zk.Conn) (string, error) { return c.Sync(s.root) })
	return err
}
