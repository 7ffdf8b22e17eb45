// Package transcript is the form in which baton once records a command's result.
package transcript

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

// A Transcript is the exit code and the output of a command: the pieces in the order in
// which they were read, each with the number of its stream. If the command failed, a
// piece of stream 0 says what else baton knows of its end. It is recorded as
//
//	baton-once 1 EXIT OMITTED
//	STREAM LENGTH
//	<so many bytes>STREAM LENGTH
//	…
type Transcript struct {
	Exit    int
	Omitted int64 // bytes of output that were not recorded for lack of room
	Pieces  []Piece
}

// A Piece is what was read from a stream at once.
type Piece struct {
	Stream int // 0, 1 or 2
	Data   []byte
}

const head = "baton-once 1 "

// MostHead and MostPieceHead bound the bytes that Encode adds: at the beginning, and for
// each piece.
const (
	MostHead      = 64
	MostPieceHead = len("2 262144\n")
)

// Encode returns the recorded form.
func (t *Transcript) Encode() []byte {
	b := fmt.Appendf(nil, "%s%d %d\n", head, t.Exit, t.Omitted)
	for _, p := range t.Pieces {
		b = fmt.Appendf(b, "%d %d\n", p.Stream, len(p.Data))
		b = append(b, p.Data...)
	}
	return b
}

var errNotTranscript = errors.New("not written by baton once")

// Decode reads the recorded form. Its pieces share the memory of text.
func Decode(text []byte) (*Transcript, error) {
	rest, ok := bytes.CutPrefix(text, []byte(head))
	if !ok {
		return nil, errNotTranscript
	}
	two := func() (a, b int64, ok bool) {
		line, after, ok1 := bytes.Cut(rest, []byte("\n"))
		first, second, ok2 := bytes.Cut(line, []byte(" "))
		a, err1 := strconv.ParseInt(string(first), 10, 64)
		b, err2 := strconv.ParseInt(string(second), 10, 64)
		rest = after
		return a, b, ok1 && ok2 && err1 == nil && err2 == nil
	}
	exit, omitted, ok := two()
	if !ok || exit < 0 || exit > 255 || omitted < 0 {
		return nil, errNotTranscript
	}
	t := &Transcript{Exit: int(exit), Omitted: omitted}
	for len(rest) > 0 {
		stream, n, ok := two()
		if !ok || stream < 0 || stream > 2 || n < 0 || n > int64(len(rest)) {
			return nil, errNotTranscript
		}
		t.Pieces = append(t.Pieces, Piece{int(stream), rest[:n]})
		rest = rest[n:]
	}
	return t, nil
}

// Output is everything that was written to one stream.
func (t *Transcript) Output(stream int) []byte {
	var all []byte
	for _, p := range t.Pieces {
		if p.Stream == stream {
			all = append(all, p.Data...)
		}
	}
	return all
}

// Replay writes each piece to its stream.
func (t *Transcript) Replay(stdout, stderr io.Writer) error {
	for _, p := range t.Pieces {
		to := stdout
		switch p.Stream {
		case 0:
			continue
		case 2:
			to = stderr
		}
		if _, err := to.Write(p.Data); err != nil {
			return err
		}
	}
	return nil
}
