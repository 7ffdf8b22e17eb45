package rules

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/suggest"
)

// draft is a limit with some of its fields.
type draft struct {
	at         *token.Token
	places     map[string]ast.Node // of its fields
	name       *string
	n          *int64
	period     *period
	zone       *time.Location
	algorithm  *limits.Algorithm
	burst      *int64
	maxWait    *time.Duration
	ahead      *int64
	parts      *int64
	classic    *bool
	offset     *time.Duration
	forAll     *bool
	perCall    *bool
	shadow     *bool
	warn       *float64
	unlimited  *bool
	contradict bool // it was refused before
}

type period struct {
	length   time.Duration
	calendar Calendar
	unit     bool // in Envoy's form
}

func (d *draft) empty() bool {
	return d.n == nil && d.period == nil && d.unlimited == nil
}

func inherit[T any](a **T, b *T) {
	if *a == nil {
		*a = b
	}
}

// from adds the missing fields from another draft.
func (d draft) from(b draft) draft {
	inherit(&d.n, b.n)
	inherit(&d.period, b.period)
	inherit(&d.zone, b.zone)
	inherit(&d.maxWait, b.maxWait)
	inherit(&d.ahead, b.ahead)
	inherit(&d.parts, b.parts)
	inherit(&d.classic, b.classic)
	inherit(&d.offset, b.offset)
	inherit(&d.forAll, b.forAll)
	inherit(&d.perCall, b.perCall)
	inherit(&d.shadow, b.shadow)
	inherit(&d.warn, b.warn)
	if d.algorithm == nil || b.algorithm != nil && *d.algorithm == *b.algorithm {
		inherit(&d.burst, b.burst)
	}
	inherit(&d.algorithm, b.algorithm)
	return d
}

func value[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
}

var limitFields = []string{
	"name", "requests", "period", "zone", "algorithm", "burst", "max_wait", "ahead", "parts", "classic", "offset",
	"for_all", "per_call", "shadow", "warn", "unlimited", "requests_per_unit", "unit",
}

// field parses a field of a limit. It returns false for a field of something else.
func (p *reader) field(d *draft, f field) bool {
	number := func(to **int64) {
		if n, ok := p.number(f.value, f.key); ok {
			*to = &n
		}
	}
	positive := func(to **int64) {
		if n, ok := p.number(f.value, f.key); ok && n == 0 {
			p.errorf(f.value, "%s must be above zero", f.key)
		} else if ok {
			*to = &n
		}
	}
	flag := func(to **bool) {
		if b, ok := p.flag(f.value, f.key); ok {
			*to = &b
		}
	}
	duration := func(to **time.Duration) {
		if t, ok := p.duration(f.value, f.key); ok {
			*to = &t
		}
	}
	switch f.key {
	case "requests", "requests_per_unit":
		if d.n != nil {
			p.errorf(f.name, "requests and requests_per_unit are the same: write one of them")
		}
		number(&d.n)
	case "period", "unit":
		if d.period != nil {
			p.errorf(f.name, "period and unit are the same: write one of them")
		}
		d.period = p.period(f)
	case "zone":
		s, ok := p.word(f.value, "zone")
		if !ok {
			break
		}
		place, err := time.LoadLocation(s)
		if err != nil || s == "Local" {
			p.errorf(f.value, "the time zone %q is not known: write one such as Europe/Berlin or UTC", s)
			break
		}
		d.zone = place
	case "algorithm":
		d.algorithm = p.readAlgorithm(f.value)
	case "burst":
		positive(&d.burst)
	case "max_wait":
		duration(&d.maxWait)
	case "ahead":
		number(&d.ahead)
	case "parts":
		positive(&d.parts)
	case "classic":
		flag(&d.classic)
	case "offset":
		duration(&d.offset)
	case "for_all":
		flag(&d.forAll)
	case "per_call":
		flag(&d.perCall)
	case "shadow":
		flag(&d.shadow)
	case "unlimited":
		flag(&d.unlimited)
	case "warn":
		d.warn = p.share(f.value)
	default:
		return false
	}
	if d.places == nil {
		d.places = make(map[string]ast.Node)
	}
	d.places[f.key] = f.value
	return true
}

// share parses a part of a limit: 0.8 or 80%.
func (p *reader) share(n ast.Node) *float64 {
	s, ok := p.text(n)
	if !ok {
		return nil
	}
	number, percent := strings.CutSuffix(s, "%")
	x, err := strconv.ParseFloat(number, 64)
	if percent {
		x /= 100
	}
	if err != nil || !(x > 0 && x <= 1) {
		p.errorf(n, "warn is a share of the limit above 0 and at most 1, such as 0.8 or 80%%")
		return nil
	}
	return &x
}

var lengths = map[string]period{
	"second": {length: time.Second}, "minute": {length: time.Minute}, "hour": {length: time.Hour},
	"day": {calendar: Day}, "week": {calendar: Week}, "month": {calendar: Month}, "year": {calendar: Year},
}

func (p *reader) period(f field) *period {
	s, ok := p.text(f.value)
	if !ok {
		return nil
	}
	unit := f.key == "unit"
	word := s
	if unit {
		word = strings.ToLower(s)
	}
	if known, is := lengths[word]; is {
		known.unit = unit
		return &known
	}
	if unit {
		p.errorf(f.value, "the unit %q is not known: it is one of second, minute, hour, day, week, month, year; other lengths are a period, as in period: 30s", s)
		return nil
	}
	letters := strings.ToLower(s)
	if near := suggest.Nearest(letters, slices.Sorted(maps.Keys(lengths))); near != "" && strings.Trim(letters, "abcdefghijklmnopqrstuvwxyz") == "" {
		p.errorf(f.value, "the period %q is not known: did you mean %s?", s, near)
		return nil
	}
	d, ok := p.duration(f.value, f.key)
	if !ok {
		return nil
	}
	return &period{length: d}
}

// limit makes the limit of a draft. It reports missing fields.
func (p *reader) limit(d draft) (Limit, bool) {
	l := Limit{
		Name: value(d.name), N: value(d.n), Zone: d.zone,
		Burst: value(d.burst), MaxWait: value(d.maxWait), Ahead: value(d.ahead),
		Parts: value(d.parts), Classic: value(d.classic), Offset: value(d.offset),
		ForAll: value(d.forAll), PerCall: value(d.perCall), Shadow: value(d.shadow), Warn: value(d.warn),
	}
	errs := p.mistakes()
	switch {
	case d.contradict:
		return l, false
	case d.n == nil && d.places["requests"] == nil && d.places["requests_per_unit"] == nil:
		p.add(d.at, "", "it does not say how many: requests is missing")
	case d.period == nil && d.places["period"] == nil && d.places["unit"] == nil:
		p.add(d.at, "", "it does not say in what time: period is missing")
	case d.n == nil || d.period == nil: // reported before
		return l, false
	}
	if p.mistakes() > errs {
		return l, false
	}
	a := cmp.Or(value(d.algorithm), value(p.algorithm))
	if a == 0 && d.period.unit {
		a = limits.FixedWindow // Envoy's way to count
	}
	c := d.period.calendar
	switch {
	case c == 0:
		l.Period = d.period.length
	case a != 0 && a != limits.FixedWindow && c <= Week: // a day as a length
		l.Period = map[Calendar]time.Duration{Day: 24 * time.Hour, Week: 7 * 24 * time.Hour}[c]
	case c == Day && d.zone == nil: // these are all days in UTC, and it is faster
		l.Period, a = 24*time.Hour, limits.FixedWindow
	default:
		l.Calendar = c
	}
	l.Algorithm = a
	return l, true
}

// drafts are limits: those of a list, or one whose fields are beside others.
type drafts struct {
	inline draft
	list   []draft
	listed bool
	at     *token.Token
}

// take parses a field of drafts. It returns false for a field of something else.
func (p *reader) take(ds *drafts, f field, depth int) bool {
	if f.key != "limits" {
		return f.key != "name" && p.field(&ds.inline, f)
	}
	ds.listed = true
	for _, one := range p.list(f.value, "limits") {
		d := draft{at: first(one)}
		fields, ok := p.fields(one, "a limit", depth)
		d.contradict = !ok
		for _, x := range fields {
			if x.key == "name" {
				if s, ok := p.word(x.value, "the name of a limit"); ok {
					d.name = &s
					d.at = first(x.value)
				}
				continue
			}
			if !p.field(&d, x) {
				p.unknown(x, "a limit", limitFields)
				d.contradict = true
			}
		}
		ds.list = append(ds.list, d)
	}
	return true
}

// all are the drafts, each with its name, on the basis of before.
func (p *reader) all(ds *drafts, before []draft) []draft {
	out := slices.Clone(before)
	put := func(d draft) {
		i := slices.IndexFunc(out, func(b draft) bool { return value(b.name) == value(d.name) })
		if i < 0 {
			out = append(out, d)
			return
		}
		name := d.name
		d = d.from(out[i])
		d.name = name
		out[i] = d
	}
	if !ds.listed {
		ds.inline.at = cmp.Or(ds.inline.at, ds.at)
		if before == nil && ds.inline.empty() && ds.inline.places == nil {
			return out
		}
		if len(before) > 1 && !slices.ContainsFunc(before, func(b draft) bool { return b.name == nil }) {
			p.add(ds.at, "", "the rule has limits with names: name the one that is meant, in a list of limits")
			return out
		}
		if len(before) == 1 {
			ds.inline.name = before[0].name
		}
		put(ds.inline)
		return out
	}
	for _, key := range []string{"requests", "requests_per_unit", "unlimited"} {
		if n := ds.inline.places[key]; n != nil {
			p.errorf(n, "%s belongs to one of the limits of the list", key)
		}
	}
	rest := ds.inline
	rest.n, rest.unlimited = nil, nil
	seen := make(map[string]bool)
	for _, d := range ds.list {
		if seen[value(d.name)] { // compile reports that
			out = append(out, d.from(rest))
			continue
		}
		seen[value(d.name)] = true
		put(d.from(rest))
	}
	return out
}

// finish makes limits of drafts, without unlimited ones.
func (p *reader) finish(path string, all []draft) (out []Limit, unlimited bool) {
	out = []Limit{}
	for _, d := range all {
		if value(d.unlimited) {
			unlimited = true
			for _, key := range []string{"requests", "period", "unit"} {
				if n := d.places[key]; n != nil {
					p.errorf(n, "it is unlimited and says %s: it can be one of them", key)
				}
			}
			continue
		}
		if l, ok := p.limit(d); ok {
			at := fmt.Sprintf("%s/%d", path, len(out))
			p.put(at, d.at)
			out = append(out, l)
		}
	}
	return out, unlimited && len(out) == 0
}
