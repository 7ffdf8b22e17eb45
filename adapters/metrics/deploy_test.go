package metrics_test

import (
	"io/fs"
	"os"
	"regexp"
	"slices"
	"testing"

	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/internal/testserver"
)

// TestDeployedNames looks for each metric that the dashboard and the alerts ask for in the table
// of this package.
func TestDeployedNames(t *testing.T) {
	t.Parallel()
	if wrong := unknown(t, os.DirFS("../../deploy")); len(wrong) > 0 {
		t.Errorf("deploy asks for what is no metric: %q", slices.Compact(wrong))
	}
}

var (
	named   = regexp.MustCompile(`\b(?:baton|db_client)_\w+`)
	comment = regexp.MustCompile(`(?m)^#.*`)
)

// unknown returns the names of metrics in files that no instrument has.
func unknown(t *testing.T, files fs.FS) (names []string) {
	t.Helper()
	var known []string
	for _, i := range metrics.Instruments() {
		name := i.Prometheus()
		known = append(known, name)
		if i.Kind == metrics.Histogram {
			known = append(known, name+"_bucket", name+"_sum", name+"_count")
		}
	}
	found := 0
	for _, pattern := range []string{"grafana/*", "prometheus/*"} {
		matched, _ := fs.Glob(files, pattern)
		for _, file := range matched {
			text, err := fs.ReadFile(files, file)
			if err != nil {
				t.Fatal(err)
			}
			for _, name := range named.FindAllString(comment.ReplaceAllString(string(text), ""), -1) {
				if found++; !slices.Contains(known, name) {
					names = append(names, name)
				}
			}
		}
	}
	if found < 100 {
		t.Errorf("found only %d names in deploy", found)
	}
	return names
}

// TestPromtoolChecksDeployed has Prometheus read the alerts, and try them.
func TestPromtoolChecksDeployed(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.Promtool(t, "", "check", "rules", "../../deploy/prometheus/alerts.yaml")
	testserver.Promtool(t, "", "test", "rules", "../../deploy/prometheus/alerts_test.yaml")
}
