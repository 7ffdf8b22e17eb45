package agent

import (
	"fmt"
	"net"
	"os"
	"strings"
	"syscall"
)

// peerOf asks the kernel for the user and the process of the peer, who cannot forge that.
func peerOf(conn net.Conn) peer {
	unknown := peer{uid: -1}
	unix, ok := conn.(*net.UnixConn)
	if !ok {
		return unknown
	}
	raw, err := unix.SyscallConn()
	if err != nil {
		return unknown
	}
	var cred *syscall.Ucred
	var failed error
	err = raw.Control(func(fd uintptr) {
		cred, failed = syscall.GetsockoptUcred(int(fd), syscall.SOL_SOCKET, syscall.SO_PEERCRED)
	})
	if err != nil || failed != nil {
		return unknown
	}
	return peer{pid: int(cred.Pid), uid: int64(cred.Uid)}
}

// program returns the present name of the process, or "".
func (p peer) program() string {
	if p.pid <= 0 {
		return ""
	}
	name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", p.pid))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
