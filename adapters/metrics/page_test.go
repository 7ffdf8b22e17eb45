package metrics_test

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/internal/translated"
)

var update = flag.Bool("update", false, "write docs/metrics.md")

//go:generate go test -run ^TestPageIsFresh$ -update .

// docs/metrics.md is made of the table, of examples that are compiled, and of what
// testdata/command.md says of the command, which the command's tests compare.
func TestPageIsFresh(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	b.WriteString(`# Metrics

[简体中文](zh/metrics.md)

Package [metrics](../adapters/metrics) turns what Baton's packages tell into counters, gauges and histograms. This page is made of its
table: ` + "`go generate ./adapters/metrics`" + `.

No label has a key as its value. The label ` + "`class`" + ` says which sort of key it is.

## Instruments

| OpenTelemetry | Prometheus | kind | unit | what | labels |
|---|---|---|---|---|---|
`)
	var labels []metrics.Label
	seen := map[string]bool{}
	for _, i := range metrics.Instruments() {
		var names []string
		for _, l := range i.Labels {
			names = append(names, "`"+l.Prometheus()+"`")
			if !seen[l.Name] {
				seen[l.Name] = true
				labels = append(labels, l)
			}
		}
		fmt.Fprintf(&b, "| `%s` | `%s` | %v | %s | %s | %s |\n", i.Name, i.Prometheus(), i.Kind, strings.Trim(i.Unit, "{}"), i.Help, strings.Join(names, " "))
	}
	b.WriteString("\n## Labels\n\n| OpenTelemetry | Prometheus | what |\n|---|---|---|\n")
	for _, l := range labels {
		fmt.Fprintf(&b, "| `%s` | `%s` | %s |\n", l.Name, l.Prometheus(), l.Help)
	}
	for _, a := range []struct{ title, folder string }{{"Prometheus", "prometheus"}, {"OpenTelemetry", "otel"}} {
		fmt.Fprintf(&b, "\n## %s\n\n`go get github.com/batonhq/baton/adapters/%s`\n\n```go\n%s```\n", a.title, a.folder, example(t, a.folder))
	}
	command, err := os.ReadFile("testdata/command.md")
	if err != nil {
		t.Fatal(err)
	}
	b.WriteString("\n" + string(command))
	const file = "../../docs/metrics.md"
	if *update {
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := translated.Write("..", "docs/metrics.md"); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(file); err != nil || string(got) != b.String() {
		t.Errorf("docs/metrics.md is stale (%v): go generate ./adapters/metrics", err)
	}
}

// example is the body of an adapter's Example.
func example(t *testing.T, adapter string) string {
	t.Helper()
	text, err := os.ReadFile("../" + adapter + "/example_test.go")
	if err != nil {
		t.Fatal(err)
	}
	_, body, ok := strings.Cut(string(text), "\nfunc Example() {\n")
	body, _, ends := strings.Cut(body, "\n}\n")
	if !ok || !ends {
		t.Fatalf("%s has no Example", adapter)
	}
	return strings.ReplaceAll("\n"+body, "\n\t", "\n")[1:] + "\n"
}
