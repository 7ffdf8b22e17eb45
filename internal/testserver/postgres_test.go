package testserver

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// A server that is not needed any more is shut down, frozen or not: one that is
// killed leaves shared memory behind, and the file that says where that is.
func TestPostgresLeavesNothing(t *testing.T) {
	NeedPostgres(t)
	t.Parallel()
	for _, frozen := range []bool{false, true} {
		s := Postgres(t)
		pid := filepath.Join(s.dir, "data", "postmaster.pid")
		if _, err := os.Stat(pid); err != nil {
			t.Fatal(err)
		}
		if frozen {
			s.Stop()
		}
		s.end()
		if _, err := os.Stat(pid); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("frozen %v: it was killed: %v", frozen, err)
		}
	}
}
