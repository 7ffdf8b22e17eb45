package agent

import (
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
)

const page = "../docs/agent.md"

// The conversation in the page is what an agent says, but for the numbers that differ
// each time.
func TestPage(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	p := newPipes()
	h := newHostAt(t, Config{}, p, nil)
	conn := p.dial()
	defer conn.Close()
	blocks := pagecode.Blocks(string(text), "session")
	if len(blocks) == 0 {
		t.Fatalf("%s has no conversation", page)
	}
	differ := regexp.MustCompile(`("token":"|"remaining_ms":)[0-9]+`)
	said := func() string {
		got := make([]byte, MaxLine) // a pipe passes on one line at a time
		n, err := conn.Read(got)
		if err != nil {
			t.Fatal(err)
		}
		return differ.ReplaceAllString(strings.TrimSuffix(string(got[:n]), "\n"), "$1…")
	}
	steps := 0
	for line := range strings.Lines(blocks[0]) {
		line = strings.TrimSuffix(line, "\n")
		if request, ok := strings.CutPrefix(line, "> "); ok {
			if _, err := fmt.Fprintln(conn, request); err != nil {
				t.Fatal(err)
			}
		} else if want := differ.ReplaceAllString(strings.TrimPrefix(line, "< "), "$1…"); said() != want {
			t.Errorf("the agent does not say %s", line)
		}
		steps++
	}
	if steps < 5 {
		t.Errorf("%s has a conversation of %d lines", page, steps)
	}
	h.stop()
}

// The page names every request, every field and every code.
func TestPageIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("protocol.go")
	if err != nil {
		t.Fatal(err)
	}
	names := append([]string{}, fieldNames...)
	for verb := range verbs {
		names = append(names, verb)
	}
	for _, m := range regexp.MustCompile(`\tcode\w+ += "(\w+)"|json:"(\w+)`).FindAllStringSubmatch(string(code), -1) {
		names = append(names, m[1]+m[2])
	}
	for _, name := range names {
		if !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(string(text), `"`+name+`"`) {
			t.Errorf("%s does not say what %s is", page, name)
		}
	}
}
