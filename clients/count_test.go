//go:build unix

package clients

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

var increments = flag.Int("increments", map[bool]int{false: 300, true: 3000}[os.Getenv("BATON_LONG") == "1"], "how often TestNoUpdateIsLost raises a number, on each store")

// Processes in all languages, two of them in one, increment a number in a file: without a lost update,
// and each with a higher token than the previous one.
func TestNoUpdateIsLost(t *testing.T) {
	t.Parallel()
	for _, s := range sites {
		t.Run(s.name, func(t *testing.T) {
			s.wanted(t)
			t.Parallel()
			h := newHost(t, s.make(t).url)
			file := filepath.Join(h.dir, "number")
			if err := os.WriteFile(file, []byte("0 0\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			var counters []*process
			for _, l := range tried(false) {
				counters = append(counters, l.start(t, h.socket))
			}
			counters = append(counters, languages[0].start(t, h.socket))
			few := *increments / 30 // for bash, which starts a program for each lock
			each := (*increments - few) / (len(counters) - 1)
			total := 0
			began := time.Now()
			for _, p := range counters {
				times := each
				if p.l.name == "bash" {
					times = few
				}
				p.send("count n %s %d", file, times)
				total += times
			}
			for _, p := range counters {
				p.expectWithin(max(patience, time.Duration(*increments)*time.Second/10), "ok", "count")
			}
			t.Logf("%d increments in %v", total, time.Since(began).Round(time.Millisecond))
			got, err := os.ReadFile(file)
			if n, _, _ := strings.Cut(string(got), " "); err != nil || n != fmt.Sprint(total) {
				t.Errorf("the number is %s, %v, want %d", got, err, total)
			}
		})
	}
}
