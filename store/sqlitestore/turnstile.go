package sqlitestore

import "os"

// A turnstile lets one process after the other write. SQLite by itself makes
// writers poll with growing pauses, which is slow and lets the lucky starve
// the others. Here they sleep in the kernel.
//
// There are two locks, because whoever leaves a single one can take it again
// before those it woke are awake: who enters holds gate while waiting for
// turn, so who leaves finds the gate shut behind the next.
//
// They are files of their own: closing a descriptor of the database would
// drop SQLite's locks.
type turnstile struct {
	gate, turn *os.File
}

func (t *turnstile) open(dir string, mode os.FileMode, owner os.FileInfo) (err error) {
	for _, f := range []struct {
		name string
		file **os.File
	}{{"gate", &t.gate}, {"turn", &t.turn}} {
		path := dir + "/" + f.name
		if *f.file, err = os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_EXCL, mode); err == nil {
			(*f.file).Chmod(mode) // whatever the umask is
			giveTo(path, owner)
		} else if *f.file, err = os.OpenFile(path, os.O_RDWR, 0); err != nil {
			return err
		}
	}
	return nil
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
