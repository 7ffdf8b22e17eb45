package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// commands are all that can be run, by their paths without "baton".
func commands() map[string]*cobra.Command {
	all := map[string]*cobra.Command{}
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Runnable() {
			all[strings.TrimPrefix(strings.TrimPrefix(c.CommandPath(), "baton"), " ")] = c
		}
		for _, below := range c.Commands() {
			walk(below)
		}
	}
	a := &app{stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr}
	walk(a.root())
	return all
}

// invoke runs baton on a store and returns all that it prints.
func invoke(t *testing.T, store string, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, "baton", args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.Dir = t.TempDir()
	cmd.Env = append(os.Environ(), "BATON_STORE="+store, "HOME="+cmd.Dir, "XDG_STATE_HOME="+cmd.Dir)
	cmd.WaitDelay = time.Second
	err := cmd.Run()
	if exited, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exited.ExitCode() < 0) {
		t.Fatalf("baton %q: %v\n%s", args, err, errs.String())
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

// The URL of a store stands where something else is expected: in the place of every
// argument and every flag's value of every command.
func TestMisplacedURLsKeepTheirSecrets(t *testing.T) {
	t.Parallel()
	const secret = "xq7Zk9"
	urls := []string{
		"redis://u:" + secret + "@h", "redis://h?auth=" + secret, "redis://u:p w" + secret + "@h",
		"redis://u:p\"w" + secret + "@h", `redis://u:p\` + secret + "@h/?pw=" + secret,
	}
	for path, command := range commands() {
		t.Run(path, func(t *testing.T) {
			t.Parallel()
			words := strings.Fields(path)
			next := 0
			try := func(args ...string) {
				t.Helper()
				all := append(append([]string{}, words...), args...)
				// No such scheme: what is right goes no further.
				stdout, stderr, code := invoke(t, "none:", all...)
				if strings.Contains(stdout+stderr, secret) {
					t.Errorf("baton %q ends with %d and shows the secret:\n%s%s", all, code, stdout, stderr)
				}
			}
			url := func() string {
				next++
				return urls[next%len(urls)]
			}
			for _, u := range urls {
				try("a", u)
				try("a", "b", u)
				try("a", u, "--", "true")
				try("--none="+u, "a")
			}
			try("k", "--", url())
			command.Flags().VisitAll(func(f *pflag.Flag) {
				if f.Value.Type() == "bool" || f.Name == "store" || path == "verify" && f.Name == "store" {
					return
				}
				for _, rest := range [][]string{{"k"}, {"k", "--", "true"}} {
					try(append([]string{"--" + f.Name + "=" + url()}, rest...)...)
				}
			})
			command.InheritedFlags().VisitAll(func(f *pflag.Flag) {
				if f.Value.Type() == "bool" {
					try("--"+f.Name+"="+url(), "k")
				}
			})
		})
	}
}
