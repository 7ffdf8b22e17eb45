package history

import "golang.org/x/sys/unix"

// Now is a clock that all processes of the machine share, in nanoseconds. It cannot be set, and it
// continues while the machine is suspended.
func Now() int64 { return read(unix.CLOCK_BOOTTIME) }

// Ahead is Now minus CLOCK_MONOTONIC, in nanoseconds, which more languages can read. It grows while the
// machine is suspended.
func Ahead() int64 { return Now() - read(unix.CLOCK_MONOTONIC) }

func read(clock int32) int64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(clock, &ts); err != nil {
		panic(err) // every Linux that Go runs on has both
	}
	return ts.Nano()
}
