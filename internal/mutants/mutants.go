// Package mutants makes many texts out of one, for fuzzers.
//
// Go's fuzzing runs a function in another process, some thousand times a second, and spends most of that
// time on communication. A parser that takes microseconds can try a hundred times as many texts: those
// near each one that the fuzzer found.
package mutants

import (
	"bytes"
	"hash/fnv"
	"math/rand/v2"
	"slices"
)

// Each is the number of texts that Of makes.
const Each = 100

// odd are pieces that often break parsers.
var odd = []string{
	"", "\x00", "\n", "\r", "\t", " ", "\"", "\\", "'", "{", "}", "[", "]", ":", ",", "-", "#", "=", "&a ", "*a", "?", "%", "/",
	"0", "-1", "1e3", "9007199254740993", "9223372036854775808", "null", "true", "\\u0000", "\\ud800", "\xff", "\xc3", "é", "\u202e", "\ufeff",
}

// Of calls try with text, and with Each - 1 texts near it, always the same ones for a text. try must not
// keep its argument.
func Of(text []byte, try func([]byte)) {
	try(text)
	hash := fnv.New64a()
	_, _ = hash.Write(text) // it never fails
	r := rand.New(rand.NewPCG(hash.Sum64(), uint64(len(text))))
	b := make([]byte, 0, 2*len(text)+64)
	for range Each - 1 {
		b = append(b[:0], text...)
		for range 1 + r.IntN(3) {
			b = mutate(r, b)
		}
		try(b)
	}
}

// mutate changes b in one place.
func mutate(r *rand.Rand, b []byte) []byte {
	from := r.IntN(len(b) + 1)
	to := min(from+r.IntN(9), len(b))
	switch r.IntN(7) {
	case 0:
		return slices.Delete(b, from, to)
	case 1:
		return b[:from]
	case 2: // twice
		return slices.Insert(b, to, bytes.Clone(b[from:to])...)
	case 3:
		if from < len(b) {
			b[from] ^= 1 << r.IntN(8)
		}
		return b
	case 4:
		if from < len(b) {
			b[from] = byte(r.IntN(256))
		}
		return b
	case 5: // a piece again, at another place
		at := r.IntN(len(b) + 1)
		return slices.Insert(b, at, bytes.Clone(b[from:to])...)
	default:
		return slices.Replace(b, from, to, []byte(odd[r.IntN(len(odd))])...)
	}
}
