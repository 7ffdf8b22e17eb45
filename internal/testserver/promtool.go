package testserver

import (
	"os/exec"
	"strings"
)

// Promtool runs Prometheus' own checks: promtool with these arguments, and with stdin
// as its input. It fails the test with what promtool says if that finds a problem. If
// it is not installed, the test is skipped, or fails if BATON_REQUIRE_SERVERS is 1.
func Promtool(t TB, stdin string, args ...string) {
	t.Helper()
	cmd := exec.Command(require(t, "promtool", "prometheus"), args...)
	cmd.Stdin = strings.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}
