package server

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

const page = "../docs/server.md"

// The commands of the page print what it says. "…" is anything.
func TestPage(t *testing.T) {
	t.Parallel()
	testserver.Curl(t)
	bash := testserver.Bash(t)
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	_, rest, ok := strings.Cut(string(text), "here it has `")
	rule, _, ended := strings.Cut(rest, "`")
	if !ok || !ended {
		t.Fatalf("%s does not say which rule it has", page)
	}
	r, err := rules.Parse("rules.yaml", []byte("rules:\n  - "+rule+"\n"))
	if err != nil {
		t.Fatal(err)
	}
	store := memstore.New()
	limiter, err := rules.New(limits.Store(store), r)
	if err != nil {
		t.Fatal(err)
	}
	addr := serve(t, replica(t, store, func(c *Config) { c.Limits = limiter }))
	steps := 0
	for _, block := range pagecode.Blocks(string(text), "console") {
		var commands, wants []string
		for line := range strings.Lines(strings.ReplaceAll(block, "\\\n", "")) {
			if command, ok := strings.CutPrefix(line, "$ "); ok {
				commands, wants = append(commands, command), append(wants, "")
			} else {
				wants[len(wants)-1] += line
			}
		}
		const end = "\x1e"
		cmd := exec.Command(bash, "-c", strings.Join(commands, "printf '\\036'\n"))
		cmd.Dir, cmd.Env = t.TempDir(), append(os.Environ(), "BATON=http://"+addr)
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		gots := strings.Split(string(out), end)
		if len(gots) != len(wants) {
			t.Fatalf("%d commands have %d outputs:\n%s", len(wants), len(gots), out)
		}
		for i, got := range gots {
			steps++
			want := strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(wants[i])), "…", ".*")
			if !regexp.MustCompile("^" + want + "$").MatchString(strings.TrimSpace(got)) {
				t.Errorf("%s$ %s%s, and not %s", page, commands[i], got, wants[i])
			}
		}
	}
	if steps < 10 {
		t.Errorf("%s has %d commands", page, steps)
	}
}

// The page, or the description that it names, says what every call and every field is.
func TestPageIsComplete(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	services := batonv1.File_server_batonv1_baton_proto.Services()
	for i := range services.Len() {
		methods := services.Get(i).Methods()
		for j := range methods.Len() {
			m := methods.Get(j)
			if !strings.Contains(string(text), string(m.Name())) {
				t.Errorf("%s does not mention %s", page, m.FullName())
			}
			if comment(m) == "" {
				t.Errorf("%s has no comment in baton.proto", m.FullName())
			}
		}
	}
	for _, code := range []string{"invalid_argument", "failed_precondition", "unauthenticated", "permission_denied", "not_found", "aborted", "resource_exhausted", "unimplemented", "unavailable"} {
		if !strings.Contains(string(text), fmt.Sprintf("| `%s` |", code)) {
			t.Errorf("%s does not say what %s means", page, code)
		}
	}
}

// comment is what stands above a declaration in baton.proto.
func comment(d protoreflect.Descriptor) string {
	text, err := os.ReadFile("batonv1/baton.proto")
	if err != nil {
		return ""
	}
	m := regexp.MustCompile(`(?m)^\s*//.*\n\s*rpc ` + string(d.Name()) + `\(`).Find(text)
	return string(m)
}
