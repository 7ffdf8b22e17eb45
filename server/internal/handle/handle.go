// Package handle seals what a client of package server keeps in its place: the claim of a
// lease. It also makes the IDs of claims, from the same secret.
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

// Keys are what secrets are for. Servers with the same secret have the same Keys of it. The
// first is for what is new; the others are for what was made before the secret was replaced.
type Keys []keys

type keys struct {
	claims  []byte // of the IDs of claims
	handles []byte // of the keys that seal handles
}

// NewKeys derives the Keys of one secret or more.
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

// ClaimIDs are the IDs of what a caller's op asks for, one of each secret. None can be known
// from the op. With the same op another kind of lock, or another TTL, is another claim: what
// the store finds for an ID is what was asked for. They do not depend on c.ID, c.Ticket and
// c.Owner.
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
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))[:22] // 132 bits, as driver.NewID
}

// A Handle stands for a lease at every server that has the same secret. The client has it
// sealed: it shows nothing, and is of use to no other caller.
type Handle struct {
	Claim driver.Claim // without an owner
	Token int64

	// TTL is that of the lease, at each renewal, too. A request that is late could
	// otherwise shorten what a client was told.
	TTL time.Duration

	Once bool // the lease is that of an attempt at an operation
}

const (
	prefix   = "bh1."
	maxLen   = 1024 // longer than any handle
	saltSize = 16

	flagOnce      = 1
	flagExclusive = 2
)

// Err does not say what is wrong with a handle.
var Err = errors.New("this handle is none of this caller's: it is that of another caller, damaged, or of servers with another secret")

// Seal makes the text of a handle, by the first secret. Each one is sealed by a key of its
// own: the number of handles of a secret is not bounded.
func (k Keys) Seal(caller string, h Handle) string { return k.seal(prefix, caller, h.encode()) }

func (k Keys) seal(kind, caller string, plain []byte) string {
	salt := make([]byte, saltSize, saltSize+len(plain)+16)
	rand.Read(salt) // never fails
	return kind + base64.RawURLEncoding.EncodeToString(k[0].aead(kind, salt).Seal(salt, make([]byte, 12), plain, []byte(caller)))
}

// Open is the reverse of Seal, by any of the secrets. The error is Err.
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
	if !ok || strings.ContainsAny(text, "\r\n") { // which base64 skips
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

// several begins the text of each lease of several keys.
const several = "bm1."

// SealAll makes the text of a lease of several keys.
func (k Keys) SealAll(caller string, all []Handle) string {
	plain := []byte{}
	for _, h := range all {
		one := h.encode()
		plain = append(binary.AppendUvarint(plain, uint64(len(one))), one...)
	}
	return k.seal(several, caller, plain)
}

// OpenAll is the reverse of SealAll and Seal. The error is Err.
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

// Again is the text of the same handle by the first secret, or "" if it is sealed by that.
func (k Keys) Again(caller, text string) string {
	if len(k) == 1 {
		return ""
	}
	kind := text[:min(len(text), len(prefix))] // several has that length, too
	if _, err := k[:1].open(kind, caller, text); err == nil {
		return ""
	}
	plain, err := k.open(kind, caller, text)
	if err != nil {
		return ""
	}
	return k.seal(kind, caller, plain)
}

// Tags are the texts that stand for an instance of a caller in the owners of its leases, by
// each secret. Nobody else can make one.
func (k Keys) Tags(caller, instance string) []string {
	all := make([]string, len(k))
	for i, of := range k {
		mac := hmac.New(sha256.New, of.claims)
		fmt.Fprintf(mac, "instance %d %s %s", len(caller), caller, instance)
		all[i] = base64.RawURLEncoding.EncodeToString(mac.Sum(nil))[:12]
	}
	return all
}

// reservations begins the text of each reservation.
const reservations = "br1."

// SealReservation makes the text of what a client has reserved, any value for JSON.
func (k Keys) SealReservation(caller string, r any) (string, error) {
	plain, err := json.Marshal(r)
	return k.seal(reservations, caller, plain), err
}

// OpenReservation is the reverse of SealReservation. The error is Err.
func (k Keys) OpenReservation(caller, text string, r any) error {
	plain, err := k.open(reservations, caller, text)
	if err != nil || json.Unmarshal(plain, r) != nil {
		return Err
	}
	return nil
}

// aead seals one text, so that its nonce can be fixed.
func (k keys) aead(kind string, salt []byte) cipher.AEAD {
	mac := hmac.New(sha256.New, k.handles)
	mac.Write(salt)
	if kind != prefix {
		mac.Write([]byte(kind))
	}
	block, err := aes.NewCipher(mac.Sum(nil))
	if err != nil { // the key has a legal length
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

// decode is the reverse of encode: of all texts it accepts only those.
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
