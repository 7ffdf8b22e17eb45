//go:build !unix

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
)

// Listen returns errors.ErrUnsupported: this system has no mode that says who may connect
// to a socket. Where it is a Unix, Listen makes a Unix socket at path, which only those
// users can connect to who may write it by mode.
func Listen(path string, _ fs.FileMode) (net.Listener, error) {
	return nil, fmt.Errorf("agent: a socket at %q: only a Unix says who may connect: %w", path, errors.ErrUnsupported)
}
