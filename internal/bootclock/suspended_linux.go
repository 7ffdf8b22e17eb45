package bootclock

import (
	"math"
	"syscall"
	"time"
	"unsafe"
)

const (
	clockMonotonic = 1
	clockBoottime  = 7
)

// suspended is how long the machine has been suspended since it was booted. It reads two
// clocks one after the other. If the scheduler interrupts it in between, the result is
// too high; so suspended reads a few times and returns the least.
func suspended() time.Duration {
	least := time.Duration(math.MaxInt64)
	for range 4 {
		before := read(clockMonotonic)
		boot := read(clockBoottime)
		after := read(clockMonotonic)
		least = min(least, boot-before)
		if after-before < 100*time.Microsecond {
			break
		}
	}
	return least
}

func read(clock uintptr) time.Duration {
	var ts syscall.Timespec
	syscall.RawSyscall(syscall.SYS_CLOCK_GETTIME, clock, uintptr(unsafe.Pointer(&ts)), 0)
	return time.Duration(ts.Nano())
}
