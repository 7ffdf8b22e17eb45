//go:build !linux

package bootclock

import "time"

// suspended is the growth of the wall clock over the monotonic one, on systems without a
// better clock. A wall clock that is set forward looks like a suspension and ends leases
// early, which is safe. One that is set back can hide a suspension.
func suspended() time.Duration {
	now := time.Now()
	wall := now.Round(0).Sub(started.Round(0))
	return max(0, wall-now.Sub(started))
}
