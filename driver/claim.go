package driver

import (
	"crypto/rand"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

// MaxKey is the length of the longest key, in bytes.
const MaxKey = 512

// CheckKey returns a *KeyError unless key is legal: 1 to MaxKey bytes of
// UTF-8 without control characters. Nothing is normalised: keys that differ
// in one byte are different locks.
func CheckKey(key string) error {
	switch {
	case key == "":
		return &KeyError{key, "it is empty"}
	case len(key) > MaxKey:
		return &KeyError{key, fmt.Sprintf("it has %d bytes, at most %d are allowed", len(key), MaxKey)}
	}
	// ASCII without controls, the common case, needs no decoding.
	ascii := true
	for i := range len(key) {
		if b := key[i]; b < 0x20 || b == 0x7f {
			return &KeyError{key, fmt.Sprintf("it has a control character (0x%02x) at byte %d", b, i)}
		} else if b >= utf8.RuneSelf {
			ascii = false
		}
	}
	if ascii {
		return nil
	}
	if !utf8.ValidString(key) {
		return &KeyError{key, "it is not UTF-8"}
	}
	for i, r := range key {
		if r >= 0x80 && r <= 0x9f {
			return &KeyError{key, fmt.Sprintf("it has a control character (U+%04X) at byte %d", r, i)}
		}
	}
	return nil
}

// idBytes is the randomness of an ID: 132 bits are 22 characters.
const idBytes = 17

var ids struct {
	sync.Mutex
	pool [60 * idBytes]byte // one system call serves many IDs
	left int
}

// NewID draws the ID of a new acquisition: 22 characters, over 128 random
// bits.
func NewID() string {
	var raw [idBytes]byte
	ids.Lock()
	if ids.left < idBytes {
		rand.Read(ids.pool[:]) // never fails: crypto/rand ends the program first
		ids.left = len(ids.pool)
	}
	ids.left -= idBytes
	copy(raw[:], ids.pool[ids.left:])
	clear(ids.pool[ids.left : ids.left+idBytes]) // a later memory dump tells nothing
	ids.Unlock()

	var text [23]byte
	base64.RawURLEncoding.Encode(text[:], raw[:])
	return string(text[:22])
}

// Limits of a request.
const (
	// MaxPermits is the highest capacity of a lock with permits.
	MaxPermits int64 = 1_000_000

	maxID    = 64
	maxOwner = 128
)

// CheckRequest returns the error that Acquire must give for r before it does
// anything: *KeyError, *RequestError, or one that wraps errors.ErrUnsupported
// if t lacks what r needs. A nil error means that r is legal.
func CheckRequest(r Request, t Traits) error {
	if err := CheckClaim(r.Claim); err != nil {
		return err
	}
	if err := checkOwner(r.Key, r.Owner); err != nil {
		return err
	}
	if reason := badWeight(r.Weight, r.Capacity); reason != "" {
		return &RequestError{r.Key, "weight", reason}
	}
	switch {
	case r.Shared() && !t.Shared:
		return fmt.Errorf("%s has no shared locks: %w", t.Store, errors.ErrUnsupported)
	case r.Capacity < Whole && !t.Permits:
		return fmt.Errorf("%s has no permits: %w", t.Store, errors.ErrUnsupported)
	}
	return CheckTTL(r.Key, r.TTL, t)
}

var idCharacter = func() (legal [256]bool) {
	for _, b := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_") {
		legal[b] = true
	}
	return legal
}()

// CheckClaim returns a *KeyError or a *RequestError unless the key and the ID
// of c are legal. It is all that Release, Renew and Downgrade need to know.
func CheckClaim(c Claim) error {
	if err := CheckKey(c.Key); err != nil {
		return err
	}
	if n := len(c.ID); n == 0 || n > maxID {
		return &RequestError{c.Key, "id", fmt.Sprintf("it has %d characters, legal are 1 to %d", n, maxID)}
	}
	for i := range len(c.ID) {
		if !idCharacter[c.ID[i]] { // the ID itself is not shown
			return &RequestError{c.Key, "id", "it has a character other than A-Z a-z 0-9 - _"}
		}
	}
	return nil
}

// CheckMove returns the error that Move must give before it does anything.
func CheckMove(c Claim, id, owner string, ttl time.Duration, t Traits) error {
	if err := CheckClaim(c); err != nil {
		return err
	}
	if err := CheckClaim(Claim{Key: c.Key, ID: id}); err != nil {
		return err
	}
	if err := checkOwner(c.Key, owner); err != nil {
		return err
	}
	return CheckTTL(c.Key, ttl, t)
}

// CheckTTL returns a *RequestError unless t accepts ttl. A limit that is zero
// does not bound; a ttl that is not positive is never legal.
func CheckTTL(key string, ttl time.Duration, t Traits) error {
	switch {
	case ttl <= 0:
		return &RequestError{key, "ttl", fmt.Sprintf("%v is not positive", ttl)}
	case ttl < t.MinTTL:
		return &RequestError{key, "ttl", fmt.Sprintf("%v is less than %v, the shortest that %s accepts", ttl, t.MinTTL, t.Store)}
	case t.MaxTTL > 0 && ttl > t.MaxTTL:
		return &RequestError{key, "ttl", fmt.Sprintf("%v is more than %v, the longest that %s accepts", ttl, t.MaxTTL, t.Store)}
	}
	return nil
}

func badWeight(weight, capacity int64) string {
	switch {
	case weight < 1:
		return fmt.Sprintf("%d is not positive", weight)
	case weight > capacity:
		return fmt.Sprintf("%d of %d is more than there is", weight, capacity)
	case capacity == Whole && weight != 1 && weight != Whole:
		return fmt.Sprintf("a reader's weight is 1, not %d", weight)
	case capacity > MaxPermits && capacity != Whole:
		return fmt.Sprintf("a capacity of %d permits is more than %d", capacity, MaxPermits)
	}
	return ""
}

func checkOwner(key, owner string) error {
	if len(owner) > maxOwner {
		return &RequestError{key, "owner", fmt.Sprintf("it has %d bytes, at most %d are allowed", len(owner), maxOwner)}
	}
	ascii := true // and printable: the common case needs no tables
	for i := range len(owner) {
		ascii = ascii && owner[i] >= ' ' && owner[i] <= '~'
	}
	if ascii {
		return nil
	}
	if !utf8.ValidString(owner) {
		return &RequestError{key, "owner", "it is not UTF-8"}
	}
	for _, r := range owner {
		if !unicode.IsPrint(r) {
			return &RequestError{key, "owner", fmt.Sprintf("it has a character that cannot be printed (%U)", r)}
		}
	}
	return nil
}
