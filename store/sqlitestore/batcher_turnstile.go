package sqlitestore

import "os"

// A turnstile lets one process after the other write. SQLite by itself makes writers poll
// with growing pauses, which is slow and lets some processes starve others. Here they
// sleep in the kernel.
//
// There are two locks, because a process that releases a single one could take it again
// before the processes that it woke. A process holds gate while it waits for turn, so the
// one that releases turn finds gate taken by the next.
//
// They are files of their own: closing a descriptor of the database would drop SQLite's
// locks.
type turnstile struct {
	gate, turn *os.File
}

func (t *turnstile) open(dir *os.File, db os.FileInfo) (err error) {
	if t.gate, err = openLock(dir, "gate", db); err == nil {
		t.turn, err = openLock(dir, "turn", db)
	}
	return err
}

func (t *turnstile) enter() error {
	if err := flock(t.gate); err != nil {
		return err
	}
	defer funlock(t.gate)
	return flock(t.turn)
}

func (t *turnstile) leave() { funlock(t.turn) }

func (t *turnstile) close() {
	for _, f := range []*os.File{t.gate, t.turn} {
		if f != nil {
			f.Close()
		}
	}
}
