package testserver

import (
	"os/exec"
	"strings"
)

// Promtool runs Prometheus' own checks: promtool with these arguments, and with stdin
// as its input, in a long test. It fails the test with what promtool says if that finds
// a problem.
func Promtool(t TB, stdin string, args ...string) {
	t.Helper()
	Long(t)
	cmd := exec.Command(require(t, "promtool", "prometheus"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
