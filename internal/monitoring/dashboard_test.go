package monitoring

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/internal/testserver"
)

var update = flag.Bool("update", false, "write deploy/grafana/baton.json")

const file = "../../deploy/grafana/baton.json"

// notShown are the instruments that the dashboard has no panel for, with the reason.
var notShown = map[string]string{}

func TestDashboardIsFresh(t *testing.T) {
	t.Parallel()
	want, err := dashboard(sections)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, want, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if have, err := os.ReadFile(file); err != nil || string(have) != string(want) {
		t.Errorf("deploy/grafana/baton.json is stale (%v): go generate ./internal/monitoring", err)
	}
}

// grafana is what the tests read of the file.
type grafana struct {
	UID, Title    string
	SchemaVersion int
	Templating    struct{ List []variable }
	Panels        []shown
}

type variable struct {
	Name, Type string
	Datasource struct{ UID string }
	Definition string
}

type shown struct {
	ID          int
	Type, Title string
	GridPos     struct{ X, Y, W, H int }
	Datasource  struct{ UID string }
	FieldConfig struct{ Defaults struct{ Unit string } }
	Targets     []struct {
		Expr, LegendFormat string
		Datasource         struct{ UID string }
	}
}

func TestDashboard(t *testing.T) {
	t.Parallel()
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range checkDashboard(have) {
		t.Error(problem)
	}
}

var (
	dollar = regexp.MustCompile(`\$\{?(\w+)`)
	legend = regexp.MustCompile(`\{\{\s*(\w+)\s*\}\}`)
)

// checkDashboard says what is wrong with a file of Grafana.
func checkDashboard(raw []byte) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var d grafana
	if err := json.Unmarshal(raw, &d); err != nil {
		return []string{err.Error()}
	}
	if d.UID == "" || d.Title == "" || d.SchemaVersion == 0 {
		wrong("it has no uid, title or schemaVersion")
	}
	known := []string{"__rate_interval"} // Grafana's own
	for _, v := range d.Templating.List {
		known = append(known, v.Name)
		if v.Type == "query" && v.Datasource.UID != "${datasource}" {
			wrong("variable %s asks %q", v.Name, v.Datasource.UID)
		}
		if v.Name == "datasource" && v.Type != "datasource" {
			wrong("datasource is a variable of type %q", v.Type)
		}
	}
	if !slices.Contains(known, "datasource") {
		wrong("it has no variable datasource")
	}
	ids, cells, left := map[int]bool{}, map[[2]int]string{}, map[string]bool{}
	for _, i := range metrics.Instruments() {
		left[i.Prometheus()] = true
	}
	for _, p := range d.Panels {
		if p.ID <= 0 || ids[p.ID] {
			wrong("%s: the id %d is not unique", p.Title, p.ID)
		}
		ids[p.ID] = true
		g := p.GridPos
		if g.X < 0 || g.Y < 0 || g.W <= 0 || g.H <= 0 || g.X+g.W > columns {
			wrong("%s: it is outside of the grid: %+v", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other, taken := cells[[2]int{x, y}]; taken {
					wrong("%s and %s overlap at %d, %d", other, p.Title, x, y)
				}
				cells[[2]int{x, y}] = p.Title
			}
		}
		if p.Title == "" {
			wrong("panel %d has no title", p.ID)
		}
		if p.Type == "row" {
			continue
		}
		if p.Datasource.UID != "${datasource}" || len(p.Targets) == 0 {
			wrong("%s: it asks nothing, or %q", p.Title, p.Datasource.UID)
		}
		for _, q := range p.Targets {
			if q.Datasource.UID != "${datasource}" {
				wrong("%s: it asks %q", p.Title, q.Datasource.UID)
			}
			of, labels, unknown := read(q.Expr)
			for _, u := range unknown {
				wrong("%s: %s", p.Title, u)
			}
			for _, i := range of {
				delete(left, i.Prometheus())
			}
			if want := unit(q.Expr); want == "" || p.FieldConfig.Defaults.Unit != want {
				wrong("%s: it shows %q, and the metric is in %q", p.Title, p.FieldConfig.Defaults.Unit, want)
			}
			for _, v := range dollar.FindAllStringSubmatch(q.Expr, -1) {
				if !slices.Contains(known, v[1]) {
					wrong("%s: there is no variable %s", p.Title, v[1])
				}
			}
			for _, l := range legend.FindAllStringSubmatch(q.LegendFormat, -1) {
				if !slices.Contains(labels, l[1]) {
					wrong("%s: its legend has %s, and the result has not", p.Title, l[1])
				}
			}
		}
	}
	for _, name := range slices.Sorted(maps.Keys(left)) {
		if notShown[name] == "" {
			wrong("%s is in no panel", name)
		}
	}
	return problems
}

// TestDashboardCatches plants what is wrong and sees it found.
func TestDashboardCatches(t *testing.T) {
	t.Parallel()
	sound, err := dashboard(sections)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ name, old, new, want string }{
		{name: "sound"},
		{"no JSON", "{", "", "invalid character"},
		{"an id twice", `"id": 2,`, `"id": 1,`, "the id 1 is not unique"},
		{"panels overlap", `"x": 3,`, `"x": 2,`, "overlap at 2, 1"},
		{"a panel that is too wide", `"w": 24,`, `"w": 25,`, "outside of the grid"},
		{"no variable for the data", `"name": "datasource"`, `"name": "data"`, "it has no variable datasource"},
		{"another source", `"uid": "${datasource}"`, `"uid": "mine"`, `"mine"`},
		{"a unit that does not fit", `"unit": "s"`, `"unit": "ms"`, `it shows "ms", and the metric is in "s"`},
		{"a metric that has gone", "baton_lock_lost_total", "baton_lock_loss_total", "baton_lock_loss_total is no metric"},
		{"a label that has gone", `error_type=~`, `error_class=~`, "has no label error_class"},
		{"a variable that has gone", `job=~\"$job\"`, `job=~\"$process\"`, "there is no variable process"},
		{"a legend without its label", "{{job}} {{store}} {{class}}", "{{mode}}", "its legend has mode"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			raw := strings.Replace(string(sound), c.old, c.new, 1)
			got := strings.Join(checkDashboard([]byte(raw)), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) || c.name != "sound" && raw == string(sound) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
	one, err := dashboard(sections[:1])
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(checkDashboard(one), "\n"); !strings.Contains(got, "baton_lock_wait_seconds is in no panel") {
		t.Errorf("found %q in half a dashboard", got)
	}
	if _, err := dashboard([]section{{"x", []panel{{queries: []query{{"baton_lock_lots", ""}}}}}}); err == nil {
		t.Error("a panel of no metric was made")
	}
}

// Prometheus understands each expression.
func TestPromtoolChecksDashboard(t *testing.T) {
	t.Parallel()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var d grafana
	if err := json.Unmarshal(raw, &d); err != nil {
		t.Fatal(err)
	}
	var rules []object
	for _, p := range d.Panels {
		for i, q := range p.Targets {
			expr := strings.ReplaceAll(q.Expr, "$__rate_interval", "1m")
			rules = append(rules, object{"record": fmt.Sprintf("panel:%d:%d", p.ID, i), "expr": dollar.ReplaceAllString(expr, ".*")})
		}
	}
	text, err := json.Marshal(object{"groups": []object{{"name": "panels", "rules": rules}}}) // which is YAML
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "rules.yaml")
	if err := os.WriteFile(name, text, 0o600); err != nil {
		t.Fatal(err)
	}
	testserver.Promtool(t, "", "check", "rules", name)
}
