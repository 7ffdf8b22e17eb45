// Package monitoring writes deploy/grafana/baton.json, the dashboard for Grafana, from
// a table. Its tests hold that file and deploy/prometheus against the table of package
// metrics, and let promtool check them; "go generate" writes the dashboard anew.
package monitoring

//go:generate go test -run ^TestDashboardIsFresh$ -update .

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/batonhq/baton/adapters/metrics"
)

type section struct {
	title  string
	panels []panel
}

// A panel shows one number, or curves over time.
type panel struct {
	title, help   string
	stat          bool // one number
	unit          string
	width, height int // of 24 columns; of rows
	steps         []step
	none          string // what a number without data shows
	queries       []query
}

// A step is the colour of a number from a value on. The first begins at no value.
type step struct {
	color string
	from  float64
}

type query struct{ expr, legend string }

// Units, as Grafana calls them.
const (
	seconds   = "s"
	count     = "short"
	perSecond = "cps"
	fraction  = "percentunit"
)

// columns is how wide Grafana's grid is.
const columns = 24

// object is one of JSON.
type object = map[string]any

// dashboard is the file of all.
func dashboard(all []section) ([]byte, error) {
	var panels []object
	id, y := 0, 0
	add := func(p object, x, width, height int) {
		id++
		p["id"], p["gridPos"] = id, object{"x": x, "y": y, "w": width, "h": height}
		panels = append(panels, p)
	}
	for _, s := range all {
		add(object{"type": "row", "title": s.title, "collapsed": false, "panels": []object{}}, 0, columns, 1)
		y++
		x, height := 0, 0
		for _, p := range s.panels {
			if x+p.width > columns {
				x, y, height = 0, y+height, 0
			}
			o, err := p.object()
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", s.title, p.title, err)
			}
			add(o, x, p.width, p.height)
			x, height = x+p.width, max(height, p.height)
		}
		y += height
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	err := enc.Encode(object{
		"uid":           "baton",
		"title":         "Baton",
		"description":   "Locks, limits, operations and elections of Baton. Made by go generate ./internal/monitoring. It reads classic histograms: a server that scrapes native ones must keep these, too.",
		"tags":          []string{"baton"},
		"editable":      true,
		"graphTooltip":  1, // one crosshair for all
		"refresh":       "30s",
		"schemaVersion": 39,
		"time":          object{"from": "now-3h", "to": "now"},
		"timezone":      "",
		"version":       1,
		"templating":    object{"list": variables()},
		"annotations":   object{"list": []object{}},
		"links":         []object{},
		"panels":        panels,
	})
	return b.Bytes(), err
}

var source = object{"type": "prometheus", "uid": "${datasource}"}

func (p panel) object() (object, error) {
	var targets []object
	for i, q := range p.queries {
		expr, err := complete(q.expr)
		if err != nil {
			return nil, err
		}
		targets = append(targets, object{
			"refId": string(rune('A' + i)), "datasource": source, "editorMode": "code", "range": true,
			"expr": expr, "legendFormat": q.legend,
		})
	}
	defaults := object{"unit": p.unit, "min": 0}
	o := object{
		"title": p.title, "description": p.help, "datasource": source, "targets": targets,
		"fieldConfig": object{"defaults": defaults, "overrides": []object{}},
	}
	if !p.stat {
		o["type"] = "timeseries"
		o["options"] = object{
			"legend":  object{"displayMode": "list", "placement": "bottom", "showLegend": true},
			"tooltip": object{"mode": "multi", "sort": "desc"},
		}
		defaults["color"] = object{"mode": "palette-classic"}
		defaults["custom"] = object{"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "showPoints": "auto"}
		return o, nil
	}
	o["type"] = "stat"
	o["options"] = object{
		"colorMode": "background", "graphMode": "area", "justifyMode": "auto", "orientation": "auto", "textMode": "value",
		"reduceOptions": object{"calcs": []string{"lastNotNull"}, "fields": "", "values": false},
	}
	var steps []object
	for i, s := range p.steps {
		o := object{"color": s.color, "value": s.from}
		if i == 0 {
			o["value"] = nil
		}
		steps = append(steps, o)
	}
	defaults["color"] = object{"mode": "thresholds"}
	defaults["thresholds"] = object{"mode": "absolute", "steps": steps}
	if p.unit == count {
		defaults["decimals"] = 0
	}
	if p.none != "" {
		defaults["noValue"] = p.none
	}
	return o, nil
}

// chosen are the labels that a reader chooses values of. All processes have the first
// two, from Prometheus.
var chosen = []string{"job", "instance", "store", "class"}

func variables() []object {
	list := []object{{"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "hide": 0}}
	for _, label := range chosen {
		ask := fmt.Sprintf(`label_values({__name__=~"baton_.+"}, %s)`, label)
		list = append(list, object{
			"name": label, "label": label, "type": "query", "datasource": source,
			"definition": ask, "query": object{"query": ask, "refId": "variable"}, "refresh": 2, "sort": 1,
			"multi": true, "includeAll": true, "allValue": ".*", "current": object{"text": []string{"All"}, "value": []string{"$__all"}},
		})
	}
	return list
}

var selector = regexp.MustCompile(`\b((?:baton|db_client)_\w+)(?:\{([^}]*)\})?`)

// complete adds to each metric of an expression what a reader has chosen.
func complete(expr string) (string, error) {
	var err error
	expr = selector.ReplaceAllStringFunc(expr, func(s string) string {
		m := selector.FindStringSubmatch(s)
		i, ok := instrument(m[1])
		if !ok {
			err = fmt.Errorf("%s is no metric", m[1])
			return s
		}
		var filters []string
		for _, name := range chosen {
			own := slices.ContainsFunc(i.Labels, func(l metrics.Label) bool { return l.Prometheus() == name })
			if own || name == "job" || name == "instance" {
				filters = append(filters, fmt.Sprintf(`%s=~"$%[1]s"`, name))
			}
		}
		if m[2] != "" {
			filters = append(filters, m[2])
		}
		return m[1] + "{" + strings.Join(filters, ",") + "}"
	})
	return expr, err
}

// instrument is what a series in Prometheus is of: its name, or that of a part of a
// histogram.
func instrument(series string) (metrics.Instrument, bool) {
	for _, i := range metrics.Instruments() {
		name := i.Prometheus()
		rest, ok := strings.CutPrefix(series, name)
		if !ok {
			continue
		}
		if parts := []string{"_bucket", "_sum", "_count"}; i.Kind == metrics.Histogram && slices.Contains(parts, rest) || i.Kind != metrics.Histogram && rest == "" {
			return i, true
		}
	}
	return metrics.Instrument{}, false
}
