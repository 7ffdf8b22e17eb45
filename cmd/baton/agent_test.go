//go:build unix

package main

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// The socket has the mode of --mode once it belongs to the --group.
func TestSocketOfAGroup(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "group-") // t.TempDir makes paths that are too long for sockets
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	group := os.Getgid()
	if os.Geteuid() == 0 {
		group = 65534
	}
	k := &serving{socket: filepath.Join(dir, "s"), at: socketFlags{perm: 0o660, gid: group}}
	l, err := k.listen()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	info, err := os.Stat(k.socket)
	if err != nil {
		t.Fatal(err)
	}
	if gid := info.Sys().(*syscall.Stat_t).Gid; info.Mode().Perm() != k.at.perm || int(gid) != group {
		t.Errorf("it has the mode %v and the group %d", info.Mode(), gid)
	}
}
