package zkstore

import (
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
)

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

// refused makes the error of an unexpected answer.
func refused(what, path string, err error) error {
	switch err {
	case nil:
		return nil
	case zk.ErrNoAuth, zk.ErrAuthFailed, zk.ErrInvalidACL:
		return fmt.Errorf("zookeeper: %w: the access list does not allow to %s %s: give the user and password of one that may", driver.ErrDenied, what, path)
	}
	if answer(err) {
		return fmt.Errorf("zookeeper refuses to %s %s: %w", what, path, err)
	}
	return err
}

// refusedAt is the index of the refused operation of a transaction, or -1.
func refusedAt(r []zk.MultiResponse, err error) int {
	if err == nil {
		return -1
	}
	return slices.IndexFunc(r, func(one zk.MultiResponse) bool { return one.Error != nil })
}

// uncertain makes ErrUnknown of an error that came during the search for the outcome of
// an earlier request.
func uncertain(err error) error {
	if errors.Is(err, driver.ErrUnknown) {
		return err
	}
	return fmt.Errorf("zookeeper: %w: %w", driver.ErrUnknown, err)
}

// errSilent can happen when the whole process was stopped for a good part of its session.
// It passes once the session has had answers for a while.
var errSilent = errors.New("the session was silent for so long that it may end at any moment")

var errVanished = errors.New("another client deleted the nodes of this request")

var errLate = errors.New("the request ended before its answer came")
