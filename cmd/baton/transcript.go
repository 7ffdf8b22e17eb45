package main

import (
	"bytes"
	"errors"
	"io"
	"math"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/cli"
	"github.com/batonhq/baton/internal/transcript"
)

// A recorder keeps the output of a command and passes it on.
type recorder struct {
	stdout, stderr *os.File // for the command
	ends           []*os.File
	relays         []*relay
	readers        sync.WaitGroup
	passing        sync.WaitGroup

	mu   sync.Mutex
	text transcript.Transcript
	size int // bytes of the encoded text
	last []transcript.Piece
	open bool
}

// mostOfFailure bounds the kept end of the output of a command that failed.
const mostOfFailure = 3 << 10

// A failedRun is a command that failed without an outcome.
type failedRun struct {
	*exit
	left transcript.Transcript
}

func (f *failedRun) Unwrap() error { return f.exit }

// failed is the end of a command that failed because of why. output keeps the end of its
// output.
func (r *recorder) failed(end *exit, why string, output bool) *failedRun {
	f := &failedRun{end, transcript.Transcript{Exit: end.Code}}
	if why != "" {
		f.left.Pieces = []transcript.Piece{{Stream: 0, Data: []byte(cut(cli.WithoutCredentials(why), 500))}}
	}
	if !output {
		return f
	}
	first := len(f.left.Pieces)
	f.left.Omitted = r.text.Omitted
	for _, p := range r.text.Pieces {
		f.left.Omitted += int64(len(p.Data))
	}
	for _, p := range r.last {
		f.left.Omitted -= int64(len(p.Data))
	}
	f.left.Pieces = append(f.left.Pieces, r.last...)
	for len(f.left.Encode()) > check.MaxFailure { // if it has very many pieces
		f.left.Omitted += int64(len(f.left.Pieces[first].Data))
		f.left.Pieces = slices.Delete(f.left.Pieces, first, first+1)
	}
	return f
}

// failureText is what a record keeps of an attempt's end.
func failureText(err error) string {
	if f, ok := errors.AsType[*failedRun](err); ok {
		return string(f.left.Encode())
	}
	return cli.WithoutCredentials(err.Error())
}

func (r *recorder) keepLast(stream int, data []byte) {
	data = data[max(0, len(data)-mostOfFailure):]
	if n := len(r.last); n > 0 && r.last[n-1].Stream == stream {
		r.last[n-1].Data = append(r.last[n-1].Data, data...)
	} else {
		r.last = append(r.last, transcript.Piece{Stream: stream, Data: bytes.Clone(data)})
	}
	size := 0
	for i := len(r.last) - 1; i >= 0; i-- {
		if size += len(r.last[i].Data); size > mostOfFailure {
			r.last[i].Data = bytes.Clone(r.last[i].Data[size-mostOfFailure:])
			r.last = slices.Delete(r.last, 0, i)
			return
		}
	}
}

// record makes a recorder. What it keeps is the same whether or not a process reads what
// it passes on.
func record(stdout, stderr io.Writer) (*recorder, error) {
	r := &recorder{size: transcript.MostHead}
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
		on := newRelay(to)
		r.ends, r.relays = append(r.ends, end), append(r.relays, on)
		r.readers.Go(func() { r.read(stream+1, end, on) })
		r.passing.Go(on.run)
	}
	return r, nil
}

func (r *recorder) read(stream int, from *os.File, on *relay) {
	take := func(data []byte) {
		r.keep(stream, data)
		on.put(data)
	}
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		take(buf[:n])
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if drain(from, take) {
				r.mu.Lock()
				r.open = true
				r.mu.Unlock()
			}
			return
		case err != nil:
			return
		}
	}
}

// mostInPipe is at least as much as a pipe holds.
const mostInPipe = 1 << 20

// A relay passes one stream on to a reader that may be slow.
type relay struct {
	to io.Writer

	mu      sync.Mutex
	changed *sync.Cond
	unread  []byte // a part may be in a write
	room    int    // put waits while unread is longer
	ended   bool   // no put follows
	deaf    bool   // the reader is gone
}

func newRelay(to io.Writer) *relay {
	r := &relay{to: to}
	r.changed = sync.NewCond(&r.mu)
	return r
}

func (r *relay) put(data []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(r.unread) > r.room && !r.deaf {
		r.changed.Wait()
	}
	if !r.deaf {
		r.unread = append(r.unread, data...)
		r.changed.Broadcast()
	}
}

// allow sets the room.
func (r *relay) allow(room int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.room = room
	r.changed.Broadcast()
}

func (r *relay) end() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	r.changed.Broadcast()
}

// behind reports whether something is still unread.
func (r *relay) behind() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.unread) > 0 && !r.deaf
}

func (r *relay) run() {
	r.mu.Lock()
	defer r.mu.Unlock()
	for !r.deaf {
		for len(r.unread) == 0 {
			if r.ended {
				return
			}
			r.changed.Wait()
		}
		data := r.unread
		r.mu.Unlock()
		_, err := r.to.Write(data)
		r.mu.Lock()
		r.unread = r.unread[:copy(r.unread, r.unread[len(data):])]
		r.deaf = err != nil
		r.changed.Broadcast()
	}
}

func (r *recorder) keep(stream int, data []byte) {
	if len(data) == 0 {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.keepLast(stream, data)
	t := &r.text
	last := len(t.Pieces) - 1
	head := 0
	if last < 0 || t.Pieces[last].Stream != stream {
		head = transcript.MostPieceHead
	}
	// After a gap, all further output is omitted.
	room := max(0, check.MaxResult-r.size-head)
	if t.Omitted > 0 {
		room = 0
	}
	kept := data[:min(len(data), room)]
	t.Omitted += int64(len(data) - len(kept))
	switch {
	case len(kept) == 0:
		return
	case head > 0:
		t.Pieces = append(t.Pieces, transcript.Piece{Stream: stream, Data: bytes.Clone(kept)})
	default:
		t.Pieces[last].Data = append(t.Pieces[last].Data, kept...)
	}
	r.size += head + len(kept)
}

// stop ends the recording when the command has ended. It does not wait for readers;
// passOn does. A process that the command left behind may keep its output open for ever:
// stop waits up to patience, and reports whether the output was still open.
func (r *recorder) stop(patience time.Duration) (left bool) {
	for _, given := range []*os.File{r.stdout, r.stderr} {
		if given != nil {
			given.Close()
		}
	}
	allow := func(room int) {
		for _, on := range r.relays {
			on.allow(room)
		}
	}
	allow(mostInPipe)
	over := time.AfterFunc(patience, func() { allow(math.MaxInt) })
	defer over.Stop()
	for _, end := range r.ends {
		_ = end.SetReadDeadline(time.Now().Add(patience))
	}
	r.readers.Wait()
	for i, end := range r.ends {
		end.Close()
		r.relays[i].end()
	}
	return r.open
}

// passOn waits, after stop, until readers have everything. A signal that asks to end ends
// it, and is returned.
func (r *recorder) passOn(sigs <-chan os.Signal) os.Signal {
	passed := make(chan struct{})
	go func() {
		defer close(passed)
		r.passing.Wait()
	}()
	for {
		select {
		case <-passed:
			return nil
		case s := <-sigs:
			if ends(s) && slices.ContainsFunc(r.relays, (*relay).behind) {
				return s
			}
		}
	}
}
