package driver

import (
	"crypto/rand"
	"encoding/base64"
	"sync"
)

// idBytes are the random bytes of an ID: 132 of their bits make 22 characters.
const idBytes = 17

var ids struct {
	sync.Mutex
	pool [60 * idBytes]byte // one system call serves many IDs
	left int
}

// NewID draws the ID of a new acquisition: 22 characters with over 128 random bits.
func NewID() string {
	var raw [idBytes]byte
	ids.Lock()
	if ids.left < idBytes {
		rand.Read(ids.pool[:]) // never fails: crypto/rand ends the program first
		ids.left = len(ids.pool)
	}
	ids.left -= idBytes
	copy(raw[:], ids.pool[ids.left:])
	clear(ids.pool[ids.left : ids.left+idBytes]) // a later memory dump must not show an ID
	ids.Unlock()

	var text [23]byte
	base64.RawURLEncoding.Encode(text[:], raw[:])
	return string(text[:22])
}
