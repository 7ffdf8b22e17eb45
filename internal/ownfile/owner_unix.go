//go:build unix

package ownfile

import (
	"io/fs"
	"os"
	"syscall"
)

const hasModes = true

// Foreign returns the owner of a file if that is neither root nor this user.
func Foreign(info fs.FileInfo) (uid uint32, foreign bool) {
	stat, ok := info.Sys().(*syscall.Stat_t)
	if !ok || stat.Uid == 0 || int(stat.Uid) == os.Geteuid() {
		return 0, false
	}
	return stat.Uid, true
}
