package monitoring

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/adapters/metrics"
)

var (
	text     = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)
	matchers = regexp.MustCompile(`\b(\w+)(?:\{([^}]*)\})`)
	matcher  = regexp.MustCompile(`(\w+)\s*(?:=~|!~|!=|=)`)
	window   = regexp.MustCompile(`\[[^]]*\]`)
	grouping = regexp.MustCompile(`\b(?:by|without|on|ignoring|group_left|group_right)\s*\(([^)]*)\)`)
	word     = regexp.MustCompile(`\b[a-zA-Z_]\w*\b\s*\(?`)
	operator = []string{"or", "and", "unless", "offset", "bool"}
)

// read finds what metrics an expression in PromQL is of, what labels its result may
// have, and which metrics and labels are not in the table of package metrics.
func read(expr string) (of []metrics.Instrument, labels, problems []string) {
	expr = text.ReplaceAllString(expr, `""`)
	buckets := false
	has := func(i metrics.Instrument, label string) bool {
		return label == "job" || label == "instance" || label == "le" && buckets ||
			slices.ContainsFunc(i.Labels, func(l metrics.Label) bool { return l.Prometheus() == label })
	}
	rest := window.ReplaceAllString(matchers.ReplaceAllString(grouping.ReplaceAllString(expr, ""), "$1"), "")
	for _, name := range word.FindAllString(rest, -1) {
		if strings.HasSuffix(name, "(") || slices.Contains(operator, strings.TrimSpace(name)) {
			continue
		}
		name = strings.TrimSpace(name)
		i, ok := instrument(name)
		if !ok {
			problems = append(problems, name+" is no metric")
			continue
		}
		buckets = buckets || strings.HasSuffix(name, "_bucket")
		of = append(of, i)
	}
	for _, m := range matchers.FindAllStringSubmatch(expr, -1) {
		i, _ := instrument(m[1])
		for _, label := range matcher.FindAllStringSubmatch(m[2], -1) {
			if !has(i, label[1]) {
				problems = append(problems, fmt.Sprintf("%s has no label %s", m[1], label[1]))
			}
		}
	}
	for _, g := range grouping.FindAllStringSubmatch(expr, -1) {
		for label := range strings.SplitSeq(g[1], ",") {
			label = strings.TrimSpace(label)
			labels = append(labels, label)
			for _, i := range of {
				if !has(i, label) {
					problems = append(problems, fmt.Sprintf("%s has no label %s", i.Prometheus(), label))
				}
			}
		}
	}
	return of, labels, problems
}

// unit is what Grafana should show an expression in, or "" if that makes no sense.
func unit(expr string) string {
	of, _, _ := read(expr)
	rates, sums := strings.Count(expr, "rate("), strings.Count(expr, "increase(")
	all := func(f func(metrics.Instrument) bool) bool {
		return len(of) > 0 && !slices.ContainsFunc(of, func(i metrics.Instrument) bool { return !f(i) })
	}
	gauge := func(i metrics.Instrument) bool { return i.Kind == metrics.Gauge || i.Kind == metrics.Sampled }
	grows := func(i metrics.Instrument) bool { return !gauge(i) }
	switch {
	case strings.Contains(expr, "histogram_quantile("):
		if all(func(i metrics.Instrument) bool { return i.Unit == "s" && i.Kind == metrics.Histogram }) && rates == 1 {
			return seconds
		}
	case strings.HasPrefix(expr, "count("):
		return count
	case strings.Contains(expr, " / "):
		if all(grows) && rates == 2 {
			return fraction
		}
	case rates == 1 && all(grows):
		return perSecond
	case rates+sums == 0 && all(func(i metrics.Instrument) bool { return gauge(i) && i.Unit == "s" }):
		return seconds
	case sums == 1 && all(grows), rates+sums == 0 && all(func(i metrics.Instrument) bool { return gauge(i) && i.Unit != "s" }):
		return count
	}
	return ""
}

func TestRead(t *testing.T) {
	t.Parallel()
	for expr, want := range map[string]string{
		`sum by (store, job) (rate(baton_lock_lost_total{cause="gone",instance="a"}[5m]))`: "",
		`sum by (le) (rate(baton_lock_wait_seconds_bucket{le="1"}[5m]))`:                   "",
		`baton_lock_lost_total unless baton_lock_lost_total offset 10m`:                    "",
		`rate(baton_lock_lots_total[5m])`:                                                  "baton_lock_lots_total is no metric",
		`baton_lock_held or up`:                                                            "up is no metric",
		`baton_lock_lost`:                                                                  "baton_lock_lost is no metric",
		`baton_lock_wait_seconds`:                                                          "baton_lock_wait_seconds is no metric",
		`baton_lock_held_bucket`:                                                           "baton_lock_held_bucket is no metric",
		`baton_lock_held{cause=~"a{}"}`:                                                    "baton_lock_held has no label cause",
		`sum by (store, le) (baton_lock_held)`:                                             "baton_lock_held has no label le",
		`baton_lock_held / on (class) baton_limit_degraded`:                                "baton_limit_degraded has no label class",
	} {
		if _, _, got := read(expr); strings.Join(got, "; ") != want {
			t.Errorf("%s: %q, want %q", expr, got, want)
		}
	}
	for expr, want := range map[string]string{
		"histogram_quantile(0.9, sum by (le) (rate(baton_lock_wait_seconds_bucket[5m])))":                                  seconds,
		"histogram_quantile(0.9, baton_lock_held)":                                                                         "",
		"rate(baton_renewal_failed_total[5m]) / rate(baton_renewal_claims_total[5m])":                                      fraction,
		"sum(rate(baton_lock_lost_total[5m]))":                                                                             perSecond,
		"sum(rate(baton_lock_hold_seconds_count[5m]))":                                                                     perSecond,
		"sum(increase(baton_lock_lost_total[5m]))":                                                                         count,
		"sum(baton_lock_held)":                                                                                             count,
		"sum(rate(baton_lock_held[5m]))":                                                                                   "",
		"sum(baton_lock_lost_total)":                                                                                       "",
		"histogram_quantile(0.9, sum by (le) (baton_lock_wait_seconds_bucket))":                                            "",
		"sum(rate(baton_lock_hold_seconds_count[5m])) / sum(baton_lock_held)":                                              "",
		"count(count by (job) (baton_lock_held))":                                                                          count,
		"sum((increase(baton_lock_lost_total[9m]) > 0) or (baton_lock_lost_total unless baton_lock_held))":                 "",
		"sum((increase(baton_lock_lost_total[9m]) > 0) or (baton_lock_lost_total unless baton_lock_lost_total offset 9m))": count,
	} {
		if got := unit(expr); got != want {
			t.Errorf("%s: in %q, want %q", expr, got, want)
		}
	}
}
