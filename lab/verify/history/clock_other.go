//go:build !linux

package history

import "time"

// Now is a clock that all processes of the machine share, in nanoseconds. On this system it is the wall
// clock: do not set it during a run.
func Now() int64 { return time.Now().UnixNano() }

// Ahead is Now minus a clock that other languages can read. On this system it is not known.
func Ahead() int64 { return 0 }
