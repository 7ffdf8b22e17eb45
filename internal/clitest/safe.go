//go:build unix

package clitest

import (
	"fmt"
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// KeepsSecrets gives a command the URL of a store in place of every argument and every
// flag's value. run runs the command and returns all that it prints.
func KeepsSecrets(t *testing.T, command *cobra.Command, run func(t *testing.T, args ...string) string) {
	const secret = "xq7Zk9"
	urls := []string{
		"redis://u:" + secret + "@h", "redis://h?auth=" + secret, "redis://u:p w" + secret + "@h",
		"redis://u:p\"w" + secret + "@h", `redis://u:p\` + secret + "@h/?pw=" + secret,
	}
	next := 0
	try := func(args ...string) {
		t.Helper()
		if printed := run(t, args...); strings.Contains(printed, secret) {
			t.Errorf("%s %q shows the secret:\n%s", command.CommandPath(), args, printed)
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
		if f.Value.Type() == "bool" || f.Name == "store" {
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
}

// Obeyed returns the first part of a text that a terminal would obey or not show
// unchanged, or "".
func Obeyed(text string) string {
	for i, r := range text {
		if r != '\n' && !unicode.IsPrint(r) || r == utf8.RuneError && !strings.HasPrefix(text[i:], "\ufffd") {
			return fmt.Sprintf("%U at byte %d", r, i)
		}
	}
	return ""
}
