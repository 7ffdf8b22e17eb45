package testserver

import (
	"os/exec"
	"strings"
)

// Promtool runs promtool of Prometheus with these arguments and stdin as its input, in a
// long test. It fails the test if promtool finds a problem.
func Promtool(t TB, stdin string, args ...string) {
	t.Helper()
	Long(t)
	cmd := exec.Command(require(t, "promtool", "prometheus"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
