//go:build unix

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/clitest"
)

// invoke runs baton-lab and returns all that it prints.
func invoke(t *testing.T, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), clitest.Patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "baton-lab", args...)
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "BATON_STORE=none:", "HOME="+cmd.Dir, "XDG_STATE_HOME="+cmd.Dir) // no such scheme: a valid command ends at it
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	if exited, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exited.ExitCode() < 0) {
		t.Fatalf("baton-lab %q: %v\n%s", args, err, out)
	}
	return string(bytes.ToValidUTF8(out, []byte("\xff")))
}

// Misplaced URLs keep their secrets, and printed arguments and files do not control the
// terminal.
func TestNothingHostileIsPrinted(t *testing.T) {
	t.Parallel()
	const hostile = "\x1b]0;title\x07\x1b[2J\u009b31m\x9b32m\r\nbaton-lab: forged\n\u202etxt.exe\u2066\x7f\u200b\u2028"
	rules := filepath.Join(t.TempDir(), "rules.yaml")
	text := strconv.Quote(hostile) // YAML reads it as Go does
	if err := os.WriteFile(rules, []byte("rules:\n  - name: "+text+"\n    limits:\n      - {requests: 5, period: "+text+"}\n"+text+": 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	rows := map[string][][]string{
		"ask":      {{}, {"-o", "json"}, {hostile}, {"--save", "/dev/null/" + hostile, "setnx-expire"}, {"-o", hostile, "setnx-expire"}},
		"draw":     {{hostile}, {"--svg", "none/" + hostile, rules}, {"--svg", "none", hostile}},
		"bench":    {{hostile}, {"--html", "none/" + hostile}},
		"verify":   {{"--store", hostile}, {"--local", hostile}, {"--fault", hostile, "--local", "memory"}},
		"simulate": {{"--rules", rules}, {"--rules", hostile}, {"--rate", "1/s", "--at", hostile}, {"--rate", hostile}, {"--rate", "1/s", hostile}},
		"scale":    {{hostile}, {"--only", hostile}, {"--render", "--root", hostile}},
	}
	for _, command := range (&app{}).root().Commands() {
		if command.Name() == "help" || !command.Runnable() {
			continue
		}
		invocations, ok := rows[command.Name()]
		if !ok {
			t.Errorf("%s has no row in this table", command.CommandPath())
		}
		t.Run(command.Name(), func(t *testing.T) {
			t.Parallel()
			for _, args := range invocations {
				out := invoke(t, append([]string{command.Name()}, args...)...)
				if bad := clitest.Obeyed(out); bad != "" {
					t.Errorf("baton-lab %s %q: %s: %q", command.Name(), args, bad, out)
				}
				if strings.Contains(out, "\nbaton-lab: forged") {
					t.Errorf("baton-lab %s %q: a forged line: %q", command.Name(), args, out)
				}
			}
			if command.Name() == "scale" { // has no URLs, and its flags begin long work
				return
			}
			clitest.KeepsSecrets(t, command, func(t *testing.T, args ...string) string {
				return invoke(t, append([]string{command.Name()}, args...)...)
			})
		})
	}
}
