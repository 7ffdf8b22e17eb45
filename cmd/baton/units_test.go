//go:build unix

package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The units of deploy/systemd start baton with flags that there are.
func TestUnits(t *testing.T) {
	t.Parallel()
	for name, flag := range map[string]string{"agent": "systemd", "serve": "roles"} {
		unit, variable := "../../deploy/systemd/baton-"+name+".service", "BATON_"+strings.ToUpper(name)+"_FLAGS"
		text, err := os.ReadFile(unit)
		if err != nil {
			t.Fatal(err)
		}
		starts := regexp.MustCompile(`(?m)^ExecStart=\S*/baton (.*)$`).FindAllStringSubmatch(string(text), -1)
		more := regexp.MustCompile(`(?m)` + variable + `=(.*)$`).FindStringSubmatch(string(text))
		if len(starts) != 1 || more == nil {
			t.Fatalf("%s starts %q, with the flags %q", unit, starts, more)
		}
		words := strings.Fields(strings.Replace(starts[0][1], "$"+variable, more[1], 1))
		cmd, rest, err := (&app{}).root().Find(words)
		if err == nil {
			err = cmd.ParseFlags(rest)
		}
		if err != nil || cmd.Name() != name || !cmd.Flag(flag).Changed {
			t.Errorf("baton %q: %v", words, err)
		}
	}
}
