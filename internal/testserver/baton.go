package testserver

import (
	"os/exec"
	"path/filepath"
)

// Baton builds the command baton of this repository and returns its path. The file is
// named baton, alone in its folder, and is removed with the test.
func Baton(t TB) (path string) {
	t.Helper()
	path = filepath.Join(freshDir(t), "baton")
	if out, err := exec.Command("go", "build", "-o", path, "github.com/batonhq/baton/cmd/baton").CombinedOutput(); err != nil {
		t.Fatalf("build baton: %v\n%s", err, out)
	}
	return path
}
