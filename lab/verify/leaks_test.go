package verify

import (
	"testing"
	"testing/synctest"
	"time"
)

// A leftover is present at every look; a thing that appears after an empty look is none.
func TestLasting(t *testing.T) {
	for _, c := range []struct {
		name string
		seen []int // the result of each look; the last one repeats
		want int
	}{
		{"stays", []int{2, 1}, 1},
		{"ends", []int{2, 1, 0}, 0},
		{"comes and goes", []int{1, 0, 1}, 0},
		{"comes", []int{0, 1}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				looks := 0
				got := lasting(time.Now().Add(7*time.Second), func() int {
					n := c.seen[min(looks, len(c.seen)-1)]
					looks++
					return n
				})
				if got != c.want {
					t.Errorf("%d are left, want %d", got, c.want)
				}
			})
		})
	}
}
