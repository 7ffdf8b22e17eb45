package monitoring

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"

	"github.com/batonhq/baton/internal/testserver"
)

const (
	alertsFile = "../../deploy/prometheus/alerts.yaml"
	testsFile  = "../../deploy/prometheus/alerts_test.yaml"
)

func TestPromtoolChecksAlerts(t *testing.T) {
	t.Parallel()
	testserver.Promtool(t, "", "check", "rules", alertsFile)
	testserver.Promtool(t, "", "test", "rules", testsFile)
}

func TestAlerts(t *testing.T) {
	t.Parallel()
	alerts, err := os.ReadFile(alertsFile)
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile(testsFile)
	if err != nil {
		t.Fatal(err)
	}
	for _, problem := range checkAlerts(alerts, tests) {
		t.Error(problem)
	}
}

var (
	ofAlert = regexp.MustCompile(`\$labels\.(\w+)`)
	command = regexp.MustCompile(`"baton ([a-z]+)[ "]`)
	fires   = regexp.MustCompile(`alertname="(\w+)"`)
)

// checkAlerts says what is wrong with a file of rules, and which of them the tests of
// promtool do not see fire, or not see silent while their metrics are there.
func checkAlerts(alerts, tests []byte) (problems []string) {
	wrong := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	var rules struct {
		Groups []struct {
			Rules []struct {
				Alert, Expr         string
				Labels, Annotations map[string]string
			}
		}
	}
	var suite struct {
		Tests []struct {
			Name   string
			Series []struct{ Series string } `yaml:"input_series"`
			Looks  []struct {
				Expr string
				Want []struct{ Labels string } `yaml:"exp_samples"`
			} `yaml:"promql_expr_test"`
		}
	}
	if err := yaml.Unmarshal(alerts, &rules); err != nil {
		return []string{err.Error()}
	}
	if err := yaml.Unmarshal(tests, &suite); err != nil {
		return []string{err.Error()}
	}
	fired, healthy := map[string]bool{}, map[string]bool{}
	for _, test := range suite.Tests {
		for _, look := range test.Looks {
			for _, want := range look.Want {
				if m := fires.FindStringSubmatch(want.Labels); m != nil {
					fired[m[1]] = true
				}
			}
		}
		for _, s := range test.Series {
			name, _, _ := strings.Cut(s.Series, "{")
			healthy[name] = healthy[name] || test.Name == "healthy"
			if test.Name == "nothing is known" {
				continue
			}
			if _, _, unknown := read(s.Series); len(unknown) > 0 {
				wrong("test %q: %s", test.Name, strings.Join(unknown, ", "))
			}
		}
	}
	if len(rules.Groups) == 0 {
		wrong("there are no groups")
	}
	for _, group := range rules.Groups {
		for _, r := range group.Rules {
			of, labels, unknown := read(r.Expr)
			for _, u := range unknown {
				wrong("%s: %s", r.Alert, u)
			}
			for _, i := range of {
				if name := i.Prometheus(); !healthy[name] && !healthy[name+"_bucket"] && !healthy[name+"_count"] {
					wrong("%s: no healthy series of %s is tested", r.Alert, name)
				}
			}
			if !fired[r.Alert] {
				wrong("%s: no test sees it fire", r.Alert)
			}
			if s := r.Labels["severity"]; s != "critical" && s != "warning" {
				wrong("%s: its severity is %q", r.Alert, s)
			}
			for _, name := range []string{"summary", "description"} {
				if r.Annotations[name] == "" {
					wrong("%s: it has no %s", r.Alert, name)
				}
				for _, l := range ofAlert.FindAllStringSubmatch(r.Annotations[name], -1) {
					if !slices.Contains(labels, l[1]) {
						wrong("%s: its %s has the label %s, and the alert has not", r.Alert, name, l[1])
					}
				}
			}
			_, next, _ := strings.Cut(r.Annotations["description"], " Next: ")
			commands := command.FindAllStringSubmatch(next, -1)
			if len(commands) == 0 {
				wrong("%s: its description has no next step", r.Alert)
			}
			for _, c := range commands {
				if _, err := os.Stat("../../cmd/baton/" + c[1] + ".go"); err != nil {
					wrong("%s: there is no command baton %s", r.Alert, c[1])
				}
			}
		}
	}
	return problems
}

// TestAlertsCatch plants what is wrong and sees it found.
func TestAlertsCatch(t *testing.T) {
	t.Parallel()
	const alerts = `
groups:
  - name: x
    rules:
      - alert: Held
        expr: sum by (store) (baton_lock_held{class="a"}) > 1
        labels: {severity: warning}
        annotations:
          summary: 'held on {{ $labels.store }}'
          description: 'It is held. Next: "baton show KEY".'
`
	const tests = `
tests:
  - name: healthy
    input_series: [{series: 'baton_lock_held{class="a"}'}]
  - name: held
    input_series: [{series: 'baton_lock_held{class="a"}'}]
    promql_expr_test: [{expr: ALERTS, exp_samples: [{labels: 'ALERTS{alertname="Held"}'}]}]
`
	for _, c := range []struct{ name, old, new, want string }{
		{name: "sound"},
		{"a metric that has gone", "baton_lock_held", "baton_lock_had", "Held: baton_lock_had is no metric"},
		{"a label that has gone", "by (store)", "by (stores)", "baton_lock_held has no label stores"},
		{"a matcher that matches nothing", `{class="a"}`, `{cause="a"}`, "baton_lock_held has no label cause"},
		{"a label that is summed up", "$labels.store", "$labels.class", "its summary has the label class"},
		{"no summary", "summary:", "title:", "it has no summary"},
		{"no next step", "baton show KEY", "look", "no next step"},
		{"a command that has gone", "baton show", "baton reveal", "there is no command baton reveal"},
		{"no severity", "severity", "urgency", `its severity is ""`},
		{"never seen to fire", "alertname=", "name=", "no test sees it fire"},
		{"never seen silent", "name: healthy", "name: ill", "no healthy series of baton_lock_held is tested"},
		{"a test of a metric that has gone", "[{series: 'baton_lock_held{", "[{series: 'baton_lock_had{", "baton_lock_had is no metric"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			both := strings.Replace(alerts+"\x00"+tests, c.old, c.new, 1)
			a, s, _ := strings.Cut(both, "\x00")
			got := strings.Join(checkAlerts([]byte(a), []byte(s)), "\n")
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}
