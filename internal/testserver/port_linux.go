package testserver

import (
	"fmt"
	"net"
)

// keepPort keeps a port from the tests of other processes until this one ends, even while
// its server is down. It returns false if another process has the port.
func keepPort(port int) bool {
	l, err := net.Listen("unix", fmt.Sprintf("@baton-testserver-%d", port)) // has no file
	if err == nil {
		kept = append(kept, l)
	}
	return err == nil
}

// kept are open until the process ends. The mutex of ports is held.
var kept []net.Listener
