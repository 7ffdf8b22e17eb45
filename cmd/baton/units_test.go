package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
)

// The unit of deploy/systemd starts baton with flags that there are.
func TestUnitStartsTheAgent(t *testing.T) {
	t.Parallel()
	const unit = "../../deploy/systemd/baton-agent.service"
	text, err := os.ReadFile(unit)
	if err != nil {
		t.Fatal(err)
	}
	starts := regexp.MustCompile(`(?m)^ExecStart=\S*/baton (.*)$`).FindAllStringSubmatch(string(text), -1)
	more := regexp.MustCompile(`(?m)BATON_AGENT_FLAGS=(.*)$`).FindStringSubmatch(string(text))
	if len(starts) != 1 || more == nil {
		t.Fatalf("%s starts %q, with the flags %q", unit, starts, more)
	}
	words := strings.Fields(strings.Replace(starts[0][1], "$BATON_AGENT_FLAGS", more[1], 1))
	cmd, rest, err := (&app{}).root().Find(words)
	if err == nil {
		err = cmd.ParseFlags(rest)
	}
	if err != nil || cmd.Name() != "agent" || cmd.Flag("systemd").Value.String() != "true" {
		t.Errorf("baton %q: %v", words, err)
	}
}
