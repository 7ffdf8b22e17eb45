//go:build !unix

package agent

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
)

// Listen returns errors.ErrUnsupported: this system has no file mode that decides who may
// connect to a socket. On a Unix, Listen makes a Unix socket at path, to which only users
// who may write it by mode can connect.
func Listen(path string, _ fs.FileMode) (net.Listener, error) {
	return nil, fmt.Errorf("agent: a socket at %q: only a Unix says who may connect: %w", path, errors.ErrUnsupported)
}
