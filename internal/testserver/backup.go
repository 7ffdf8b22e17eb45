package testserver

import (
	"os"
	"path/filepath"
)

// Backup copies what the server has on its disk, and restore brings that back. Both kill
// the server and start it again. The server's data directory must be named data, and it
// must need no other server.
func (p *Process) Backup() (restore func()) {
	p.t.Helper()
	kept, data := filepath.Join(freshDir(p.t), "data"), filepath.Join(p.dir, "data")
	replace := func(to, from string) {
		p.t.Helper()
		p.Kill()
		err := os.RemoveAll(to)
		if err == nil {
			err = os.CopyFS(to, os.DirFS(from))
		}
		if err != nil {
			p.t.Fatalf("copy the data of a server: %v", err)
		}
		p.Restart()
	}
	replace(kept, data)
	return func() { p.t.Helper(); replace(data, kept) }
}
