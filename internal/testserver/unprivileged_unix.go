//go:build unix

package testserver

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"strconv"
	"syscall"
)

// unprivileged is how to start a server that refuses to run as root: as the user
// "postgres", which Debian's packages make.
func unprivileged() (*syscall.SysProcAttr, error) {
	attr := childAttr()
	if os.Geteuid() != 0 {
		return attr, nil
	}
	uid, gid, err := postgresUser()
	if err != nil {
		return nil, err
	}
	if attr == nil {
		attr = new(syscall.SysProcAttr)
	}
	attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	return attr, nil
}

// giveAway makes path belong to that user.
func giveAway(path string) error {
	if os.Geteuid() != 0 {
		return nil
	}
	uid, gid, err := postgresUser()
	if err != nil {
		return err
	}
	return os.Chown(path, uid, gid)
}

func postgresUser() (uid, gid int, err error) {
	u, err := user.Lookup("postgres")
	if err != nil {
		return 0, 0, fmt.Errorf("PostgreSQL does not run as root: %w", err)
	}
	if uid, err = strconv.Atoi(u.Uid); err == nil {
		gid, err = strconv.Atoi(u.Gid)
	}
	return uid, gid, err
}

// trusted reports whether a program belongs to the user of this process, or to root.
func trusted(program fs.FileInfo) bool {
	of, ok := program.Sys().(*syscall.Stat_t)
	return ok && (of.Uid == 0 || int(of.Uid) == os.Geteuid())
}
