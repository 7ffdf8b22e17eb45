//go:build race

package check

// The race detector makes each of them several times as slow, and finds nothing
// in more of them.
func init() { cleanSeeds = 150 }
