package metrics_test

import (
	"os"
	"strings"
	"testing"

	"github.com/batonhq/baton/adapters/metrics"
)

// docs/metrics.md names every instrument and every label.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range metrics.Instruments() {
		names := []string{i.Name, i.Prometheus()}
		for _, l := range i.Labels {
			names = append(names, l.Name, l.Prometheus())
		}
		for _, name := range names {
			if !strings.Contains(string(page), "| `"+name+"`") {
				t.Errorf("docs/metrics.md has no %s", name)
			}
		}
	}
}
