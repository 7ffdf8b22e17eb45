package main

import (
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"strconv"

	"github.com/spf13/pflag"

	"github.com/batonhq/baton/agent"
)

// socketFlags say who may connect to a Unix socket.
type socketFlags struct {
	mode, group string

	perm fs.FileMode // set by check
	gid  int         // -1: unchanged
}

func (k *socketFlags) register(f *pflag.FlagSet) {
	f.StringVar(&k.mode, "mode", "0660", "mode of the socket: users with write permission can use it")
	f.StringVar(&k.group, "group", "", "group that the socket is given to (default: that of the process)")
}

func (k *socketFlags) check() error {
	mode, err := strconv.ParseUint(k.mode, 8, 9)
	if err != nil {
		return usage("--mode %s: it is an octal number, such as 0660", safe(k.mode))
	}
	k.perm, k.gid = fs.FileMode(mode), -1
	if k.group != "" {
		if k.gid, err = number(k.group, func() (string, error) {
			g, err := user.LookupGroup(k.group)
			if err != nil {
				return "", err
			}
			return g.Gid, nil
		}); err != nil {
			return usage("--group %s: %w", safe(k.group), err)
		}
	}
	return nil
}

// number reads a number, or looks up a name by find.
func number(text string, find func() (string, error)) (int, error) {
	if n, err := strconv.ParseUint(text, 10, 32); err == nil {
		return int(n), nil
	}
	found, err := find()
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseUint(found, 10, 32)
	return int(n), err
}

func (k *socketFlags) listen(path string) (net.Listener, error) {
	mode := k.perm
	if k.gid >= 0 {
		mode &^= 0o070 // of the group that the socket has at first
	}
	l, err := agent.Listen(path, mode)
	if err != nil {
		return nil, &exit{Code: exitConfig, Err: err}
	}
	if k.gid >= 0 {
		err = os.Chown(path, -1, k.gid)
		if err == nil {
			err = os.Chmod(path, k.perm)
		}
		if err != nil {
			l.Close()
			return nil, &exit{Code: exitConfig, Err: fmt.Errorf("--group %s: %w", safe(k.group), err)}
		}
	}
	return l, nil
}
