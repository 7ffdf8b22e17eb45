//go:build unix

package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

// What is wrong with the value of a flag is told in words of Baton's, and not of Go's.
func TestValuesOfFlagsAreExplained(t *testing.T) {
	t.Parallel()
	n := 0
	for path, c := range commands() {
		c.InheritedFlags() // adds them
		c.Flags().VisitAll(func(f *pflag.Flag) {
			err := c.ParseFlags([]string{"--" + f.Name + "=x?"})
			if err == nil {
				return
			}
			n++
			if text := misspelt(c, err).Error(); regexp.MustCompile("strconv|parse|parsing|syntax").MatchString(text) {
				t.Errorf("baton %s: %s", path, text)
			}
		})
	}
	if n < 20 {
		t.Errorf("%d flags refused a value", n)
	}
}

// Lines of help that are broken by hand are not broken again.
func TestHelpIsFolded(t *testing.T) {
	t.Parallel()
	for path, c := range commands() {
		if c.Hidden {
			continue
		}
		text := c.Long
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if strings.Contains(f.Usage, "\n") {
				t.Errorf("baton %s: --%s is broken by hand, and then by its width", path, f.Name)
			}
		})
		lines := strings.Split(text, "\n")
		for i, line := range lines[:len(lines)-1] {
			next, _, _ := strings.Cut(lines[i+1], " ")
			if next != "" && line != "" && line[0] != ' ' && !strings.HasSuffix(line, ":") && len(line)+len(next) < 72 {
				t.Errorf("baton %s: %q ends too soon: %q follows", path, line, lines[i+1])
			}
		}
	}
}

// A command that cannot write what it was asked for has failed.
func TestFullDisk(t *testing.T) {
	t.Parallel()
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("there is no /dev/full here")
	}
	store := "sqlite:" + filepath.Join(t.TempDir(), "locks.db")
	if _, _, code := invoke(t, store, "lock", "--ttl", "1h", "held"); code != 0 {
		t.Fatalf("lock: %d", code)
	}
	for _, line := range []string{
		"--help", "help", "--version", "help run", "run --help", "help stores", "ls", "ls -o json", "show held", "watch",
		"limit --rate 9/1m -o json k", "limit show k", "limit show --rate 9/1m k", "limit ls -o json", "once ls -o json", "once show k",
		"schema print --dialect postgres", "schema print --dialect mysql", "completion bash", "completion zsh", "completion fish",
		"version", "doctor", "token new team", "lock another",
	} {
		t.Run(line, func(t *testing.T) {
			t.Parallel()
			full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer full.Close()
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			cmd := exec.CommandContext(ctx, "baton", strings.Fields(line)...)
			var errs bytes.Buffer
			cmd.Stdout, cmd.Stderr = full, &errs
			cmd.Env = append(os.Environ(), "BATON_STORE="+store)
			_ = cmd.Run()
			if code := cmd.ProcessState.ExitCode(); code != exitFailed || !strings.Contains(errs.String(), "no space left") {
				t.Errorf("exit code %d: %s", code, errs.String())
			}
		})
	}
}
