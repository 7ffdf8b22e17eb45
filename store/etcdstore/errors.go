package etcdstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
)

// harmless are errors that the server returns before a request has changed anything.
// ErrNoSpace is not among them: the server may find its quota used up after it has
// executed the request.
var harmless = []error{
	rpctypes.ErrTooManyRequests, rpctypes.ErrRequestTooLarge, rpctypes.ErrTooManyOps,
	rpctypes.ErrDuplicateKey, rpctypes.ErrEmptyKey, rpctypes.ErrKeyNotFound,
	rpctypes.ErrLeaseNotFound, rpctypes.ErrLeaseTTLTooLarge, rpctypes.ErrNotCapable,
	rpctypes.ErrNoLeader, rpctypes.ErrNotLeader, rpctypes.ErrCompacted, rpctypes.ErrFutureRev,
	rpctypes.ErrInvalidAuthToken, rpctypes.ErrAuthOldRevision,
	rpctypes.ErrMemberNotLearner, rpctypes.ErrCorrupt,
}

// denials are errors of a wrong user or password, or of a missing right.
var denials = []error{
	rpctypes.ErrUserEmpty, rpctypes.ErrAuthFailed, rpctypes.ErrPermissionDenied, rpctypes.ErrAuthNotEnabled, rpctypes.ErrUserNotFound,
}

// denied returns the error of a denial, else nil.
func denied(err error) error {
	if slices.ContainsFunc(denials, func(d error) bool { return errors.Is(err, d) }) {
		return fmt.Errorf("etcd: %w: %w", driver.ErrDenied, err)
	}
	return nil
}

// failure makes an error of package driver out of that of a sent request.
func failure(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	err = rpctypes.Error(err)
	if d := denied(err); d != nil {
		return d
	}
	if slices.ContainsFunc(harmless, func(h error) bool { return errors.Is(err, h) }) {
		return unavailable(driver.Answered(err, err.Error()))
	}
	if neverSent(err) {
		return unavailable(err)
	}
	if c := ctx.Err(); c != nil && !errors.Is(err, c) {
		err = fmt.Errorf("%w: %w", c, err)
	}
	return fmt.Errorf("etcd: %w: %w", driver.ErrUnknown, err)
}

// neverSent reports whether there was no connection to send on, or the request is larger
// than the server takes. (The client takes answers of any size.) gRPC tells these only by
// their texts.
func neverSent(err error) bool {
	text := err.Error()
	if strings.Contains(text, "message larger than max") {
		return true
	}
	if s, ok := status.FromError(err); ok && s.Code() != codes.Unavailable && s.Code() != codes.Unknown {
		return false
	}
	return strings.Contains(text, "error while dialing") || strings.Contains(text, "Error while dialing") ||
		strings.Contains(text, "there is no address available") || strings.Contains(text, "there is no connection available") ||
		strings.Contains(text, "no SubConns available") || strings.Contains(text, "authentication handshake failed")
}

func unavailable(err error) error { return fmt.Errorf("etcd: %w: %w", driver.ErrUnavailable, err) }

// readFailure is failure for requests that change nothing.
func readFailure(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if c := ctx.Err(); c != nil {
		return c
	}
	err = rpctypes.Error(err)
	return cmp.Or(denied(err), unavailable(err))
}

func leaseGone(err error) bool { return errors.Is(rpctypes.Error(err), rpctypes.ErrLeaseNotFound) }

// passing reports whether an error is worth another try.
func passing(err error) bool {
	switch status.Code(err) {
	case codes.Unavailable, codes.DeadlineExceeded, codes.Canceled, codes.Unknown:
		return true
	}
	return false
}
