//go:build !unix

package systemd

// closeOnExec does nothing: children get only what they are given here.
func closeOnExec(int) {}
