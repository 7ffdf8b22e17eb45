package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonhq/baton/driver"
)

// A transcript is what a command has left: its exit code and its output, each
// piece with the number of its stream, in the order in which it was read. It is
// recorded as
//
//	baton-once 1 EXIT OMITTED
//	STREAM LENGTH
//	<so many bytes>STREAM LENGTH
//	…
type transcript struct {
	exit    int
	omitted int64 // bytes of output that there was no room for
	pieces  []piece
}

type piece struct {
	stream int // 1 or 2
	data   []byte
}

const (
	transcriptHead = "baton-once 1 "
	mostHead       = 64
	mostPieceHead  = len("2 262144\n")
)

func (t *transcript) encode() []byte {
	b := fmt.Appendf(nil, "%s%d %d\n", transcriptHead, t.exit, t.omitted)
	for _, p := range t.pieces {
		b = fmt.Appendf(b, "%d %d\n", p.stream, len(p.data))
		b = append(b, p.data...)
	}
	return b
}

var errNotTranscript = errors.New("not written by baton once")

func decodeTranscript(text []byte) (*transcript, error) {
	rest, ok := bytes.CutPrefix(text, []byte(transcriptHead))
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
	t := &transcript{exit: int(exit), omitted: omitted}
	for len(rest) > 0 {
		stream, n, ok := two()
		if !ok || stream < 1 || stream > 2 || n < 0 || n > int64(len(rest)) {
			return nil, errNotTranscript
		}
		t.pieces = append(t.pieces, piece{int(stream), rest[:n]})
		rest = rest[n:]
	}
	return t, nil
}

// output is all that was written to one stream.
func (t *transcript) output(stream int) []byte {
	var all []byte
	for _, p := range t.pieces {
		if p.stream == stream {
			all = append(all, p.data...)
		}
	}
	return all
}

// replay writes each piece where it belongs.
func (t *transcript) replay(stdout, stderr io.Writer) error {
	for _, p := range t.pieces {
		to := stdout
		if p.stream == 2 {
			to = stderr
		}
		if _, err := to.Write(p.data); err != nil {
			return err
		}
	}
	return nil
}

// A recorder passes the output of a command on and keeps it.
type recorder struct {
	stdout, stderr *os.File // what the command is given
	ends           []*os.File
	pumps          sync.WaitGroup

	mu   sync.Mutex
	text transcript
	size int // of text, encoded
	open bool
}

// record makes a recorder. Whether anybody reads what is passed on makes no
// difference to what is kept.
func record(stdout, stderr io.Writer) (*recorder, error) {
	r := &recorder{size: mostHead}
	for stream, to := range []io.Writer{stdout, stderr} {
		end, given, err := os.Pipe()
		if err != nil {
			r.stop(0)
			return nil, err
		}
		if stream == 0 {
			r.stdout = given
		} else {
			r.stderr = given
		}
		r.ends = append(r.ends, end)
		r.pumps.Go(func() { r.pump(stream+1, end, to) })
	}
	return r, nil
}

func (r *recorder) pump(stream int, from *os.File, to io.Writer) {
	heard := true
	take := func(data []byte) {
		r.keep(stream, data)
		if heard {
			_, err := to.Write(data)
			heard = err == nil
		}
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		take(buf[:n])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			r.mu.Lock()
			r.open = true
			r.mu.Unlock()
			drain(from, take)
			return
		case err != nil:
			return
		}
	}
}

// drain takes what is in a pipe already.
func drain(from *os.File, take func([]byte)) {
	conn, err := from.SyscallConn()
	if err == nil {
		err = from.SetReadDeadline(time.Time{})
	}
	if err != nil {
		return
	}
	buf := make([]byte, 1<<20) // as large as pipes are
	n := 0
	_ = conn.Read(func(fd uintptr) bool {
		n, _ = unix.Read(int(fd), buf)
		return true // whatever it says: there may be nothing
	})
	take(buf[:max(n, 0)])
}

func (r *recorder) keep(stream int, data []byte) {
	if len(data) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	t := &r.text
	last := len(t.pieces) - 1
	head := 0
	if last < 0 || t.pieces[last].stream != stream {
		head = mostPieceHead
	}
	// What comes after a gap is left out, too.
	room := max(0, driver.MaxResult-r.size-head)
	if t.omitted > 0 {
		room = 0
	}
	kept := data[:min(len(data), room)]
	t.omitted += int64(len(data) - len(kept))
	switch {
	case len(kept) == 0:
		return
	case head > 0:
		t.pieces = append(t.pieces, piece{stream, bytes.Clone(kept)})
	default:
		t.pieces[last].data = append(t.pieces[last].data, kept...)
	}
	r.size += head + len(kept)
}

// stop ends the recording when the command has ended. Somebody whom it has left
// behind may have its output still, for ever: that is waited for a little.
// It reports whether there was such a one.
func (r *recorder) stop(patience time.Duration) (left bool) {
	for _, given := range []*os.File{r.stdout, r.stderr} {
		if given != nil {
			given.Close()
		}
	}
	for _, end := range r.ends {
		_ = end.SetReadDeadline(time.Now().Add(patience))
	}
	r.pumps.Wait()
	for _, end := range r.ends {
		end.Close()
	}
	return r.open
}
