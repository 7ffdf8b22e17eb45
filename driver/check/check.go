// Package check tells whether a request to a store is legal. A store calls it before it
// does anything else, so that bad input changes nothing and gets the same error on every
// store.
package check

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/batonhq/baton/driver"
)

// MaxKey is the length of the longest key, in bytes.
const MaxKey = 512

// Key returns a *driver.KeyError unless key is 1 to MaxKey bytes of UTF-8 without control
// characters. Keys are not normalised: keys that differ in one byte are different locks.
func Key(key string) error {
	switch {
	case key == "":
		return badKey(key, "it is empty: a key names what is locked, such as item/42")
	case len(key) > MaxKey:
		return badKey(key, fmt.Sprintf("it has %d bytes, at most %d are allowed", len(key), MaxKey))
	}
	// ASCII without control characters, the common case, needs no decoding.
	ascii := true
	for i := range len(key) {
		if b := key[i]; b < 0x20 || b == 0x7f {
			return badKey(key, fmt.Sprintf("it has a control character (0x%02x) at byte %d", b, i))
		} else if b >= utf8.RuneSelf {
			ascii = false
		}
	}
	if ascii {
		return nil
	}
	if !utf8.ValidString(key) {
		return badKey(key, "it is not UTF-8")
	}
	for i, r := range key {
		if r >= 0x80 && r <= 0x9f {
			return badKey(key, fmt.Sprintf("it has a control character (U+%04X) at byte %d", r, i))
		}
	}
	return nil
}

// Prefixed returns a *driver.KeyError unless both key and prefix+key are legal. what
// names the thing that prefix+key is for in the error: "an operation".
func Prefixed(prefix, key, what string) error {
	if err := Key(key); err != nil {
		return err
	}
	if most := MaxKey - len(prefix); len(key) > most {
		return badKey(key, fmt.Sprintf("it has %d bytes, at most %d are allowed for %s", len(key), most, what))
	}
	return nil
}

// Limits of a request.
const (
	// MaxPermits is the highest capacity of a lock with permits.
	MaxPermits int64 = 1_000_000

	maxID    = 64
	maxOwner = 128
)

// Request returns the error that Acquire must give for r before it does anything:
// *driver.KeyError, *driver.RequestError, or one that wraps errors.ErrUnsupported if t
// lacks what r needs. It is nil if r is legal.
func Request(r driver.Request, t driver.Traits) error {
	if err := Claim(r.Claim); err != nil {
		return err
	}
	if err := checkOwner(r.Key, r.Owner); err != nil {
		return err
	}
	if reason := badWeight(r.Weight, r.Capacity); reason != "" {
		return bad(r.Key, "weight", reason)
	}
	switch {
	case r.MaxWaiting < 0:
		return bad(r.Key, "waiting", fmt.Sprintf("a queue of at most %d waiters", r.MaxWaiting))
	case r.Shared() && !t.Shared:
		return fmt.Errorf("%s has no shared locks: %w", t.Store, errors.ErrUnsupported)
	case r.Capacity < driver.Whole && !t.Permits:
		return fmt.Errorf("%s has no permits: %w", t.Store, errors.ErrUnsupported)
	}
	return TTL(r.Key, r.TTL, t)
}

var idCharacter = func() (legal [256]bool) {
	for _, b := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") {
		legal[b] = true
	}
	return legal
}()

// Claim returns a *driver.KeyError or a *driver.RequestError unless the key and the ID of
// c are legal. Release, Renew and Downgrade check only that.
func Claim(c driver.Claim) error {
	if err := Key(c.Key); err != nil {
		return err
	}
	if n := len(c.ID); n == 0 || n > maxID {
		return bad(c.Key, "id", fmt.Sprintf("it has %d characters, legal are 1 to %d", n, maxID))
	}
	for i := range len(c.ID) {
		if !idCharacter[c.ID[i]] { // the ID is a secret: the error does not show it
			return bad(c.Key, "id", "it has a character other than A-Z a-z 0-9 - _")
		}
	}
	return nil
}

// Move returns the error that Move must give before it does anything.
func Move(c driver.Claim, id, owner string, ttl time.Duration, t driver.Traits) error {
	if err := Claim(c); err != nil {
		return err
	}
	if err := Claim(driver.Claim{Key: c.Key, ID: id}); err != nil {
		return err
	}
	if err := checkOwner(c.Key, owner); err != nil {
		return err
	}
	return TTL(c.Key, ttl, t)
}

// Rename returns the error that Rename must give before it does anything.
func Rename(c driver.Claim, owner string) error {
	if err := Claim(c); err != nil {
		return err
	}
	return checkOwner(c.Key, owner)
}

// TTL returns a *driver.RequestError unless ttl is positive and t accepts it. A bound of
// t that is zero does not apply.
func TTL(key string, ttl time.Duration, t driver.Traits) error {
	switch {
	case ttl <= 0:
		return bad(key, "ttl", fmt.Sprintf("%v is not positive", ttl))
	case ttl < t.MinTTL:
		return bad(key, "ttl", fmt.Sprintf("%v is less than %v, the shortest that %s accepts", ttl, t.MinTTL, t.Store))
	case t.MaxTTL > 0 && ttl > t.MaxTTL:
		return bad(key, "ttl", fmt.Sprintf("%v is more than %v, the longest that %s accepts", ttl, t.MaxTTL, t.Store))
	}
	return nil
}

func badWeight(weight, capacity int64) string {
	switch {
	case weight < 1:
		return fmt.Sprintf("%d is not positive", weight)
	case weight > capacity:
		return fmt.Sprintf("%d of %d is more than there is", weight, capacity)
	case capacity == driver.Whole && weight != 1 && weight != driver.Whole:
		return fmt.Sprintf("a reader's weight is 1, not %d", weight)
	case capacity > MaxPermits && capacity != driver.Whole:
		return fmt.Sprintf("a capacity of %d permits is more than %d", capacity, MaxPermits)
	}
	return ""
}

func checkOwner(key, owner string) error {
	if len(owner) > maxOwner {
		return bad(key, "owner", fmt.Sprintf("it has %d bytes, at most %d are allowed", len(owner), maxOwner))
	}
	ascii := true // and printable: the common case needs no Unicode tables
	for i := range len(owner) {
		ascii = ascii && owner[i] >= ' ' && owner[i] <= '~'
	}
	if ascii {
		return nil
	}
	if !utf8.ValidString(owner) {
		return bad(key, "owner", "it is not UTF-8")
	}
	for _, r := range owner {
		if !unicode.IsPrint(r) {
			return bad(key, "owner", fmt.Sprintf("it has a character that cannot be printed (%U)", r))
		}
	}
	return nil
}

// MaxTogether is the most locks that one AcquireAll may ask for.
const MaxTogether = 64

// Together returns the error that AcquireAll must give for r before it does anything:
// Request's, or a *driver.RequestError unless there are 1 to MaxTogether requests with
// different keys and without Queue.
func Together(r []driver.Request, t driver.Traits) error {
	if n := len(r); n < 1 || n > MaxTogether {
		return bad("", "number", fmt.Sprintf("%d requests, legal are 1 to %d", n, MaxTogether))
	}
	keys := make(map[string]bool, len(r))
	for _, q := range r {
		if err := Request(q, t); err != nil {
			return err
		}
		switch {
		case keys[q.Key]:
			return bad(q.Key, "key", "it is asked for twice")
		case q.Queue:
			return bad(q.Key, "queue", "there is no queue for several locks")
		}
		keys[q.Key] = true
	}
	return nil
}

func badKey(key, reason string) error { return &driver.KeyError{Key: key, Reason: reason} }

func bad(key, field, reason string) error {
	return &driver.RequestError{Key: key, Field: field, Reason: reason}
}

// DefaultOwner is Owner for this process.
func DefaultOwner() string {
	program, err := os.Executable()
	if err != nil {
		program = ""
	}
	return Owner(os.Getpid(), program)
}

// Owner is the default name of a process and its program: host:pid program. A program of
// "" is left out. Arguments are never part of it, because they may be secret.
func Owner(pid int, program string) string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	owner := fmt.Sprintf("%.60s:%d", host, pid)
	if program = driver.Printable(filepath.Base(program)); program != "." {
		owner += " " + program
	}
	return strings.TrimSpace(strings.ToValidUTF8(owner[:min(len(owner), maxOwner)], ""))
}
