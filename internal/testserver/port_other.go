//go:build !linux

package testserver

// keepPort does nothing here: tests of other processes may take the port.
func keepPort(int) bool { return true }
