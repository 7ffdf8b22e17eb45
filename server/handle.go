package server

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
	"errors"
	"fmt"
	"strings"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// keys are what the secret is for. Servers with the same secret have the same keys.
type keys struct {
	claims  []byte // of the IDs of claims
	handles []byte // of the keys that seal handles
}

func newKeys(secret []byte) (k keys, err error) {
	if k.claims, err = hkdf.Key(sha256.New, secret, nil, "baton server: IDs of claims", 32); err != nil {
		return k, err
	}
	k.handles, err = hkdf.Key(sha256.New, secret, nil, "baton server: handles", 32)
	return k, err
}

// claimID is the ID of what a caller's op asks for. It cannot be known from the op.
func (k keys) claimID(caller, key, op string) string {
	mac := hmac.New(sha256.New, k.claims)
	for _, part := range []string{caller, key, op} {
		var size [8]byte
		binary.BigEndian.PutUint64(size[:], uint64(len(part)))
		mac.Write(size[:])
		mac.Write([]byte(part))
	}
	return base64.RawURLEncoding.EncodeToString(mac.Sum(nil))[:22] // 132 bits, as driver.NewID
}

// A handle stands for a lease at every server that has the same secret. The client has it
// sealed: it shows nothing, and is of use to no other caller.
type handle struct {
	claim driver.Claim // without an owner
	token int64
	once  bool // the lease is that of an attempt at an operation
}

const (
	handlePrefix = "bh1."
	maxHandle    = 1024 // longer than any handle
	saltSize     = 16

	flagOnce      = 1
	flagExclusive = 2
)

// errHandle does not say what is wrong with a handle.
var errHandle = errors.New("this handle is none of this caller's: it is that of another caller, damaged, or of servers with another secret")

// seal makes the text of a handle. Each one is sealed by a key of its own: the number of
// handles of a secret is not bounded.
func (k keys) seal(caller string, h handle) string {
	salt := make([]byte, saltSize, saltSize+128)
	rand.Read(salt) // never fails
	return handlePrefix + base64.RawURLEncoding.EncodeToString(k.aead(salt).Seal(salt, make([]byte, 12), h.encode(), []byte(caller)))
}

// open is the reverse of seal. The error is errHandle.
func (k keys) open(caller, text string) (handle, error) {
	sealed, ok := strings.CutPrefix(text, handlePrefix)
	if !ok || len(text) > maxHandle || strings.ContainsAny(text, "\r\n") { // which base64 skips
		return handle{}, errHandle
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(sealed)
	if err != nil || len(raw) < saltSize {
		return handle{}, errHandle
	}
	plain, err := k.aead(raw[:saltSize]).Open(nil, make([]byte, 12), raw[saltSize:], []byte(caller))
	if err != nil {
		return handle{}, errHandle
	}
	h, err := decodeHandle(plain)
	if err != nil { // sealed by a later version
		return handle{}, errHandle
	}
	return h, nil
}

// aead seals one handle, so that its nonce can be fixed.
func (k keys) aead(salt []byte) cipher.AEAD {
	mac := hmac.New(sha256.New, k.handles)
	mac.Write(salt)
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

func (h handle) encode() []byte {
	var flags byte
	if h.once {
		flags |= flagOnce
	}
	if h.claim.Exclusive() {
		flags |= flagExclusive
	}
	b := []byte{flags}
	for _, text := range []string{h.claim.Key, h.claim.ID} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	b = binary.AppendVarint(b, h.claim.Ticket)
	b = binary.AppendVarint(b, h.token)
	if !h.claim.Exclusive() {
		b = binary.AppendVarint(b, h.claim.Weight)
		b = binary.AppendVarint(b, h.claim.Capacity)
	}
	return b
}

// decodeHandle is the reverse of encode: of all texts it accepts only those.
func decodeHandle(text []byte) (h handle, err error) {
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
	h.once = flags&flagOnce != 0
	h.claim.Key, h.claim.ID = part(), part()
	h.claim.Ticket, h.token = number(), number()
	h.claim.Weight, h.claim.Capacity = driver.Whole, driver.Whole
	if flags&flagExclusive == 0 {
		h.claim.Weight, h.claim.Capacity = number(), number()
	}
	switch {
	case err != nil:
		return handle{}, err
	case len(b) > 0:
		return handle{}, errors.New("there is more than a handle")
	}
	if err := check.Claim(h.claim); err != nil {
		return handle{}, err
	}
	if !bytes.Equal(h.encode(), text) {
		return handle{}, errors.New("it can be written shorter")
	}
	return h, nil
}
