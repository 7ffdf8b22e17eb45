package once

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"unicode/utf8"

	"github.com/batonhq/baton/driver"
)

// An Option changes one call of Do.
type Option func(*options)

type options struct{ fingerprint string }

// Fingerprint says what the operation is asked to do: the body of a request, a command
// line. If an attempt at the same key has begun with another fingerprint, Do fails with
// an *OtherRequestError instead of returning its result. Records without a fingerprint,
// of callers without this option or of older versions, match every fingerprint. A caller
// without one gets the recorded outcome.
//
// Fingerprint("a", "b") is not Fingerprint("ab"). The store keeps a hash of 132 bits
// after the owner in the record: it is no secret, and everyone who reads the store can
// test guesses. It costs one more request for an operation that is not done.
func Fingerprint(request ...string) Option {
	h := sha256.New()
	for _, part := range request {
		_ = binary.Write(h, binary.BigEndian, uint64(len(part))) // a hash never fails
		h.Write([]byte(part))
	}
	text := base64.RawURLEncoding.EncodeToString(h.Sum(nil))[:fingerprintLen]
	return func(o *options) { o.fingerprint = text }
}

const (
	fingerprintLen  = 22
	fingerprintMark = " request:"
	maxOwner        = 128 // of a record, in bytes
)

// mark appends a fingerprint to an owner, which is cut if necessary.
func mark(owner, fingerprint string) string {
	if fingerprint == "" {
		return owner
	}
	if room := maxOwner - len(fingerprintMark) - fingerprintLen; len(owner) > room {
		for room > 0 && !utf8.RuneStart(owner[room]) {
			room--
		}
		owner = owner[:room]
	}
	return owner + fingerprintMark + fingerprint
}

// unmark is the inverse of mark.
func unmark(text string) (owner, fingerprint string) {
	at := len(text) - fingerprintLen - len(fingerprintMark)
	if at < 0 || !strings.HasPrefix(text[at:], fingerprintMark) {
		return text, ""
	}
	fingerprint = text[at+len(fingerprintMark):]
	if strings.Trim(fingerprint, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") != "" {
		return text, ""
	}
	return text[:at], fingerprint
}

// match removes the fingerprint from a record, and refuses a record of another request.
func (o options) match(rec driver.Record) (driver.Record, error) {
	var other string
	rec.Owner, other = unmark(rec.Owner)
	if o.fingerprint != "" && other != "" && other != o.fingerprint {
		return rec, &OtherRequestError{Key: rec.Key, Record: rec}
	}
	return rec, nil
}

// ErrOtherRequest is what errors.Is finds in every *OtherRequestError.
var ErrOtherRequest = errors.New("the key belongs to another request")

// OtherRequestError says that an attempt at the operation has begun with another
// Fingerprint. The function did not run.
type OtherRequestError struct {
	Key    string
	Record driver.Record // of the other request, done or not
}

// Is makes errors.Is(err, ErrOtherRequest) true.
func (e *OtherRequestError) Is(target error) bool { return target == ErrOtherRequest }

func (e *OtherRequestError) Error() string {
	state := "has begun"
	if e.Record.Done {
		state = "is done"
	}
	return fmt.Sprintf("once: operation %q %s, and was asked to do something else: use another key, or forget what is recorded", e.Key, state)
}
