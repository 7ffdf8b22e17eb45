//go:build !linux || !(amd64 || arm64)

package quick

import "net"

// Conn returns conn: this platform has no faster way.
func Conn(conn net.Conn) net.Conn { return conn }
