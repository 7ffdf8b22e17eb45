// Package handle seals the claim of a lease, which the client of package server keeps.
// From the same secret it makes the IDs of claims.
package handle

import (
	"bytes"
	"crypto/aes"
	"crypto/cipher"
	"crypto/hkdf"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// Keys are derived from one secret or more. Equal secrets give equal Keys. The first
// secret is for what is new; the others find and open what was made before it replaced
// them.
type Keys []keys

type keys struct {
	claims  []byte // for the IDs of claims
	handles []byte // for the keys that seal texts
}

func NewKeys(secrets ...[]byte) (Keys, error) {
	all := make(Keys, len(secrets))
	for i, secret := range secrets {
		var err error
		if all[i].claims, err = hkdf.Key(sha256.New, secret, nil, "baton server: IDs of claims", 32); err != nil {
			return nil, err
		}
		if all[i].handles, err = hkdf.Key(sha256.New, secret, nil, "baton server: handles", 32); err != nil {
			return nil, err
		}
	}
	return all, nil
}

// ClaimIDs returns the IDs of the claim that a caller's op asks for, one by each secret.
// An ID cannot be computed from the op without a secret. Another kind of lock, or another
// TTL, has other IDs, so that the store never returns a claim of another kind. The IDs do
// not depend on c.ID, c.Ticket and c.Owner.
func (k Keys) ClaimIDs(caller, op string, c driver.Claim, ttl time.Duration) []string {
	ids := make([]string, len(k))
	for i := range k {
		ids[i] = k[i].claimID(caller, op, c, ttl)
	}
	return ids
}

func (k keys) claimID(caller, op string, c driver.Claim, ttl time.Duration) string {
	mac := hmac.New(sha256.New, k.claims)
	number := func(n int64) {
		var text [8]byte
		binary.BigEndian.PutUint64(text[:], uint64(n))
		mac.Write(text[:])
	}
	for _, part := range []string{caller, c.Key, op} {
		number(int64(len(part)))
		mac.Write([]byte(part))
	}
	number(c.Weight)
	number(c.Capacity)
	number(int64(ttl))
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))[:22] // 132 bits, as long as driver.NewID
}

// A Handle describes a lease for every server with the same secret. The client has it
// sealed: unreadable, and of no use to another caller.
type Handle struct {
	Claim driver.Claim // without the owner
	Token int64

	// TTL is that of the lease and of each renewal. With another one, a late request could
	// shorten a lease that its client was told of.
	TTL time.Duration

	Once bool // the lease of an attempt at an operation
}

const (
	prefix   = "bh1."
	maxLen   = 1024 // longer than any handle of one lease
	saltSize = 16

	flagOnce      = 1
	flagExclusive = 2
)

// Err refuses a handle. It does not say why, to give no hint.
var Err = errors.New("this handle is none of this caller's: it is that of another caller, damaged, or of servers with another secret")

// Seal returns the text of a handle, by the first secret. Each text has a key of its own,
// so any number of handles may be sealed by a secret.
func (k Keys) Seal(caller string, h Handle) string { return k.seal(prefix, caller, h.encode()) }

func (k Keys) seal(kind, caller string, plain []byte) string {
	salt := make([]byte, saltSize, saltSize+len(plain)+16)
	rand.Read(salt) // never fails
	return kind + base64.RawURLEncoding.EncodeToString(k[0].aead(kind, salt).Seal(salt, make([]byte, 12), plain, []byte(caller)))
}

// Open returns the handle of a text that any of the secrets sealed. The error is Err.
func (k Keys) Open(caller, text string) (Handle, error) {
	if len(text) > maxLen {
		return Handle{}, Err
	}
	plain, err := k.open(prefix, caller, text)
	if err != nil {
		return Handle{}, err
	}
	h, err := decode(plain)
	if err != nil { // sealed by a later version
		return Handle{}, Err
	}
	return h, nil
}

func (k Keys) open(kind, caller, text string) ([]byte, error) {
	sealed, ok := strings.CutPrefix(text, kind)
	if !ok || strings.ContainsAny(text, "\r\n") { // base64 ignores these
		return nil, Err
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil || len(raw) < saltSize {
		return nil, Err
	}
	for _, of := range k {
		if plain, err := of.aead(kind, raw[:saltSize]).Open(nil, make([]byte, 12), raw[saltSize:], []byte(caller)); err == nil {
			return plain, nil
		}
	}
	return nil, Err
}

// several is the prefix of a lease of several keys.
const several = "bm1."

// SealAll returns the text of a lease of several keys.
func (k Keys) SealAll(caller string, all []Handle) string {
	plain := []byte{}
	for _, h := range all {
		one := h.encode()
		plain = append(binary.AppendUvarint(plain, uint64(len(one))), one...)
	}
	return k.seal(several, caller, plain)
}

// OpenAll returns the handles of a text by SealAll or Seal. The error is Err.
func (k Keys) OpenAll(caller, text string) (all []Handle, err error) {
	if !strings.HasPrefix(text, several) {
		h, err := k.Open(caller, text)
		return []Handle{h}, err
	}
	plain, err := k.open(several, caller, text)
	for err == nil && len(plain) > 0 {
		n, size := binary.Uvarint(plain)
		if size <= 0 || n > uint64(len(plain)-size) {
			return nil, Err
		}
		h, err := decode(plain[size : size+int(n)])
		if err != nil {
			return nil, Err
		}
		all, plain = append(all, h), plain[size+int(n):]
	}
	if len(all) == 0 {
		return nil, Err
	}
	return all, nil
}

// Again returns the text of the same handle by the first secret, or "" if that one sealed
// it, or none did.
func (k Keys) Again(caller, text string) string {
	if len(k) == 1 {
		return ""
	}
	kind := text[:min(len(text), len(prefix))] // all prefixes have the same length
	if _, err := k[:1].open(kind, caller, text); err == nil {
		return ""
	}
	plain, err := k.open(kind, caller, text)
	if err != nil {
		return ""
	}
	return k.seal(kind, caller, plain)
}

// Tags returns the tags of an instance of a caller, one by each secret. The owners of the
// instance's leases end with such a tag. Without a secret a tag cannot be made.
func (k Keys) Tags(caller, instance string) []string {
	all := make([]string, len(k))
	for i, of := range k {
		mac := hmac.New(sha256.New, of.claims)
		fmt.Fprintf(mac, "instance %d %s %s", len(caller), caller, instance)
		all[i] = base64.RawURLEncoding.EncodeToString(mac.Sum(nil))[:12]
	}
	return all
}

// reservations is the prefix of a reservation.
const reservations = "br1."

// SealReservation returns the text of a reservation, which is any value for JSON.
func (k Keys) SealReservation(caller string, r any) (string, error) {
	plain, err := json.Marshal(r)
	return k.seal(reservations, caller, plain), err
}

// OpenReservation reads a text by SealReservation into r. The error is Err.
func (k Keys) OpenReservation(caller, text string, r any) error {
	plain, err := k.open(reservations, caller, text)
	if err != nil || json.Unmarshal(plain, r) != nil {
		return Err
	}
	return nil
}

// aead returns a cipher for one text, so its nonce can be constant.
func (k keys) aead(kind string, salt []byte) cipher.AEAD {
	mac := hmac.New(sha256.New, k.handles)
	mac.Write(salt)
	if kind != prefix {
		mac.Write([]byte(kind))
	}
	block, err := aes.NewCipher(mac.Sum(nil))
	if err != nil { // cannot be: the key has a legal length
		panic(err)
	}
	gcm, err := cipher.NewGCM(block)
	if err != nil {
		panic(err)
	}
	return gcm
}

func (h Handle) encode() []byte {
	var flags byte
	if h.Once {
		flags |= flagOnce
	}
	if h.Claim.Exclusive() {
		flags |= flagExclusive
	}
	b := []byte{flags}
	for _, text := range []string{h.Claim.Key, h.Claim.ID} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	b = binary.AppendVarint(b, h.Claim.Ticket)
	b = binary.AppendVarint(b, h.Token)
	b = binary.AppendVarint(b, int64(h.TTL))
	if !h.Claim.Exclusive() {
		b = binary.AppendVarint(b, h.Claim.Weight)
		b = binary.AppendVarint(b, h.Claim.Capacity)
	}
	return b
}

// decode reads a text by encode. It refuses any other text, also another form of the same
// handle.
func decode(text []byte) (h Handle, err error) {
	b := text
	if len(b) == 0 || b[0]&^(flagOnce|flagExclusive) != 0 {
		return h, fmt.Errorf("flags %.1x", b)
	}
	flags := b[0]
	b = b[1:]
	part := func() (s string) {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			err = errors.New("a text is cut off")
			return ""
		}
		b = b[size:]
		s, b = string(b[:n]), b[n:]
		return s
	}
	number := func() int64 {
		n, size := binary.Varint(b)
		if size <= 0 {
			err = errors.New("a number is cut off")
			return 0
		}
		b = b[size:]
		return n
	}
	h.Once = flags&flagOnce != 0
	h.Claim.Key, h.Claim.ID = part(), part()
	h.Claim.Ticket, h.Token, h.TTL = number(), number(), time.Duration(number())
	h.Claim.Weight, h.Claim.Capacity = driver.Whole, driver.Whole
	if flags&flagExclusive == 0 {
		h.Claim.Weight, h.Claim.Capacity = number(), number()
	}
	switch {
	case err != nil:
		return Handle{}, err
	case len(b) > 0:
		return Handle{}, errors.New("there is more than a handle")
	case h.TTL <= 0:
		return Handle{}, errors.New("it has no TTL")
	}
	if err := check.Claim(h.Claim); err != nil {
		return Handle{}, err
	}
	if !bytes.Equal(h.encode(), text) {
		return Handle{}, errors.New("it can be written shorter")
	}
	return h, nil
}
