//go:build race

package check

// The race detector makes all of it several times as slow, and finds nothing in
// more of it.
func init() { cleanSeeds, bigHolds = 150, 10_000 }
