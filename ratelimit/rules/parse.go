package rules

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/token"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/suggest"
	"github.com/batonhq/baton/ratelimit"
)

// MaxFile is the greatest number of bytes of rules, in all files together.
const MaxFile = 4 << 20

// Other bounds: more than people write, and less than exhausts a program's memory, time
// or stack.
const (
	maxLine  = 4096 // also a bound for the nesting within one line
	maxDepth = 64
	maxNodes = 2_000_000 // with those that aliases repeat
	maxTold  = 100       // reported errors

	// maxLines is for one mapping that is written in lines. The library that parses them
	// calls itself for each line, and copies all later ones.
	maxLines = 10_000
)

// Parse parses rules. name is that of the file, for errors. It refuses a text with
// mistakes with Errors.
func Parse(name string, text []byte) (Rules, error) {
	return parse([]source{{file: name, content: text}}, Failure{})
}

// parse parses the rules of several files as one.
func parse(files []source, otherwise Failure) (r Rules, _ error) {
	p := &reader{otherwise: otherwise, at: make(map[string]place), bad: make(map[string]bool)}
	size, order := 0, make(map[string]int)
	for i := range files {
		p.source = &files[i]
		order[files[i].file] = i
		if size += len(files[i].content); size > MaxFile {
			p.add(nil, "", fmt.Sprintf("the rules have more than %d bytes", MaxFile))
			return Rules{}, p.errs
		}
	}
	for i := range files {
		p.source = &files[i]
		p.read(&r)
	}
	_, problems := compile(r)
	for _, one := range problems {
		if !p.told(one.path) {
			at := p.find(one.path)
			if at.source != nil {
				p.source = at.source
			}
			p.add(at.token, one.where, one.reason)
		}
	}
	if len(p.errs) == 0 {
		return r, nil
	}
	slices.SortStableFunc(p.errs, func(a, b *Error) int {
		return cmp.Or(cmp.Compare(order[a.File], order[b.File]), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	if p.more > 0 {
		p.errs = append(p.errs, &Error{File: p.file, Reason: fmt.Sprintf("and %d mistakes more", p.more)})
	}
	return Rules{}, p.errs
}

// A source is one file of rules.
type source struct {
	file    string
	content []byte
	lines   []string
}

// A place is the place of a path of compile.
type place struct {
	*source
	token *token.Token
}

type reader struct {
	*source
	errs    Errors
	at      map[string]place           // places of the paths of compile
	anchors map[string]*ast.AnchorNode // by name, the last one
	aliases map[*ast.AliasNode]*ast.AnchorNode
	bad     map[string]bool // paths with a reported mistake
	nodes   int
	blocks  blocks
	more    int // mistakes that are not reported

	otherwise Failure           // of documents without one
	failure   Failure           // of the document
	algorithm *limits.Algorithm // of the document
}

func (p *reader) add(tk *token.Token, where, reason string) {
	e := &Error{File: p.file, Where: where, Reason: reason}
	if tk != nil && tk.Position != nil {
		e.Line, e.Column = tk.Position.Line, tk.Position.Column
		if e.Line >= 1 && e.Line <= len(p.lines) {
			e.Source = p.lines[e.Line-1]
		}
	}
	if len(p.errs) == maxTold {
		p.more++
		return
	}
	p.errs = append(p.errs, e)
}

func (p *reader) mistakes() int { return len(p.errs) + p.more }

func (p *reader) errorf(n ast.Node, format string, args ...any) {
	p.add(first(n), "", fmt.Sprintf(format, args...))
}

// told reports whether a mistake at path or before it was reported: it may be the cause
// of another one.
func (p *reader) told(path string) bool {
	for {
		if p.bad[path] {
			return true
		}
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return false
		}
		path = path[:i]
	}
}

func (p *reader) put(path string, at *token.Token) { p.at[path] = place{p.source, at} }

// find is the place of a path, or of its longest part that has one.
func (p *reader) find(path string) place {
	for {
		if at := p.at[path]; at.token != nil {
			return at
		}
		i := strings.LastIndexByte(path, '/')
		if i < 0 {
			return place{}
		}
		path = path[:i]
	}
}

func (p *reader) read(r *Rules) {
	refuse := func(line int, format string, args ...any) {
		e := &Error{File: p.file, Line: line, Reason: fmt.Sprintf(format, args...)}
		if line > 0 {
			e.Column = 1
		}
		p.errs = append(p.errs, e)
	}
	if !utf8.Valid(p.content) {
		for i, line := range bytes.Split(p.content, []byte("\n")) {
			if !utf8.Valid(line) {
				refuse(i+1, "the line is not UTF-8")
				return
			}
		}
	}
	text := bytes.TrimPrefix(p.content, []byte("\ufeff"))
	p.lines = strings.Split(strings.ReplaceAll(string(text), "\r\n", "\n"), "\n")
	for i, line := range p.lines {
		if len(line) > maxLine {
			refuse(i+1, "the line has %d bytes: at most %d are read", len(line), maxLine)
			return
		}
	}
	file, err := p.parse(strings.Join(p.lines, "\n"))
	if err != nil {
		return
	}
	empty := true
	for _, doc := range file.Docs {
		if doc != nil && doc.Body != nil {
			p.document(doc.Body, r)
			empty = false
		}
	}
	if empty { // a file may be about to be written
		refuse(0, "there are no rules in it, and no domain: for none, write rules: []")
	}
}

func (p *reader) document(n ast.Node, r *Rules) {
	fields, _ := p.fields(n, "a file of rules", 0)
	p.failure, p.algorithm = p.otherwise, nil
	var name, descriptors, rules *field
	for i, f := range fields {
		switch f.key {
		case "domain":
			name = &fields[i]
		case "descriptors":
			descriptors = &fields[i]
		case "rules":
			rules = &fields[i]
		case "on_failure":
			p.failure, _ = p.onFailure(f.value)
		case "algorithm":
			p.algorithm = p.readAlgorithm(f.value)
		default:
			p.unknown(f, "a file of rules", []string{"domain", "descriptors", "rules", "on_failure", "algorithm"})
		}
	}
	if rules != nil {
		if _, none := p.plain(rules.value).(*ast.NullNode); none {
			p.errorf(rules.name, "it does not say which rules: for none, write rules: []")
		}
		for _, one := range p.list(rules.value, "rules") {
			path := fmt.Sprintf("rules/%d", len(r.Rules))
			r.Rules = append(r.Rules, p.rule(path, one, false))
		}
	}
	switch {
	case name != nil:
		d := Domain{OnFailure: p.failure}
		var ok bool
		if d.Name, ok = p.word(name.value, "the name of a domain"); !ok {
			return
		}
		// Documents and files may each have a part of a domain.
		i := slices.IndexFunc(r.Domains, func(other Domain) bool { return other.Name == d.Name })
		if i < 0 {
			i = len(r.Domains)
			r.Domains = append(r.Domains, d)
			p.put(fmt.Sprintf("domains/%d", i), first(name.name))
			p.put(fmt.Sprintf("domains/%d/name", i), first(name.value))
		}
		to := &r.Domains[i]
		if to.OnFailure != p.failure {
			p.errorf(name.value, "another part of this domain has another on_failure: write the same in both")
		}
		if descriptors != nil {
			to.Descriptors = append(to.Descriptors, p.descriptors(fmt.Sprintf("domains/%d", i), descriptors.value, 1, len(to.Descriptors))...)
		}
	case descriptors != nil:
		p.errorf(descriptors.name, "descriptors belong to a domain: name it, as in domain: shop")
	case rules == nil:
		p.errorf(n, "there are no rules in it, and no domain")
	}
}

func (p *reader) onFailure(n ast.Node) (f Failure, ok bool) {
	const what = "on_failure"
	mode, at := "", n
	f.After = 500 * time.Millisecond
	if s, scalar := p.plain(n).(ast.ScalarNode); scalar {
		mode, _ = p.text(s)
	} else {
		fields, _ := p.fields(n, what, 0)
		for _, x := range fields {
			switch x.key {
			case "mode":
				mode, _ = p.text(x.value)
				at = x.value
			case "after":
				if d, ok := p.duration(x.value, "after"); ok {
					f.After = d
				}
			case "instances":
				f.Instances, _ = p.number(x.value, "instances")
				if f.Instances == 0 {
					p.errorf(x.value, "instances is at least 1")
				}
			default:
				p.unknown(x, what, []string{"mode", "after", "instances"})
			}
		}
	}
	modes := []string{"error", "open", "closed", "local"}
	switch mode {
	case "error":
		return Failure{}, true
	case "open":
		f.By = ratelimit.ByOpen
	case "closed":
		f.By = ratelimit.ByClosed
	case "local":
		f.By = ratelimit.ByLocal
		if f.Instances == 0 {
			p.errorf(at, "local needs to know how many processes share the limits: write {mode: local, instances: 4}")
			return Failure{}, false
		}
		return f, true
	default:
		p.errorf(at, "on_failure is one of %s", strings.Join(modes, ", "))
		return Failure{}, false
	}
	if f.Instances != 0 {
		p.errorf(at, "instances are for the mode local")
		return Failure{}, false
	}
	return f, true
}

func (p *reader) readAlgorithm(n ast.Node) *limits.Algorithm {
	s, ok := p.text(n)
	if !ok {
		return nil
	}
	a, ok := limits.ParseAlgorithm(s)
	if !ok {
		var all []string
		for a := limits.FixedWindow; a <= limits.LeakyBucket; a++ {
			all = append(all, a.String())
		}
		if near := suggest.Nearest(strings.ReplaceAll(strings.ToLower(s), "_", "-"), all); near != "" {
			p.errorf(n, "the algorithm %q is not known: did you mean %s?", s, near)
			return nil
		}
		p.errorf(n, "the algorithm %q is not known: there are %s", s, strings.Join(all, ", "))
		return nil
	}
	return &a
}

// rule parses a rule, of the list of rules or of a descriptor.
func (p *reader) rule(path string, n ast.Node, described bool) (r Rule) {
	p.put(path, first(n))
	before := p.mistakes()
	defer func() { p.bad[path] = p.mistakes() > before }()
	what, depth := "a rule", 1
	if described {
		what = "rate_limit"
	} else {
		r.OnFailure = p.failure
	}
	fields, ok := p.fields(n, what, depth)
	if !ok {
		return r
	}
	ds := drafts{at: first(n)}
	var tiers, keys []field
	errs := p.mistakes()
	for _, f := range fields {
		switch f.key {
		case "name":
			p.put(path+"/name", first(f.value))
			p.put(path, first(f.value))
			r.Name, _ = p.word(f.value, "a name")
		case "tiers":
			p.put(path+"/tiers", first(f.name))
			tiers, _ = p.fields(f.value, "tiers", depth)
		case "keys":
			p.put(path+"/keys", first(f.name))
			keys, _ = p.fields(f.value, "keys", depth)
		case "replaces":
			p.put(path+"/replaces", first(f.name))
			r.Replaces = p.replaces(f.value)
		case "on_failure":
			p.put(path+"/on_failure", first(f.name))
			r.OnFailure, _ = p.onFailure(f.value)
		default:
			if !p.take(&ds, f, depth) {
				p.unknown(f, what, append([]string{"limits", "tiers", "keys", "replaces", "on_failure"}, limitFields...))
			}
		}
	}
	ds.at = p.at[path].token
	base := p.all(&ds, nil)
	if !ds.listed && ds.inline.n == nil && ds.inline.unlimited == nil && len(tiers)+len(keys) > 0 && ds.inline.places["requests"] == nil && ds.inline.places["requests_per_unit"] == nil {
		// its fields are for the tiers and keys
	} else {
		r.Limits, r.Unlimited = p.finish(path+"/limits", base)
		if len(r.Limits) == 0 {
			r.Limits = nil
		}
	}
	if p.mistakes() > errs { // so that a mistake is reported once, and not for each tier
		return r
	}
	r.Tiers = p.variants(path+"/tiers", tiers, base, depth)
	r.Keys = p.variants(path+"/keys", keys, base, depth)
	return r
}

// variants parses the limits of tiers or of keys.
func (p *reader) variants(path string, all []field, base []draft, depth int) map[string][]Limit {
	if len(all) == 0 {
		return nil
	}
	if base == nil {
		base = []draft{}
	}
	out := make(map[string][]Limit, len(all))
	for _, f := range all {
		at := path + "/" + strconv.Quote(f.key)
		p.put(at, first(f.name))
		ds := drafts{at: first(f.name)}
		fields, _ := p.fields(f.value, strings.TrimSuffix(path[strings.LastIndexByte(path, '/')+1:], "s"), depth+1)
		errs := p.mistakes()
		for _, x := range fields {
			if !p.take(&ds, x, depth+1) {
				p.unknown(x, "this", append([]string{"limits"}, limitFields...))
			}
		}
		if p.mistakes() > errs {
			continue
		}
		if !ds.listed && value(ds.inline.unlimited) {
			out[f.key] = []Limit{}
			for _, key := range []string{"requests", "period", "unit"} {
				if n := ds.inline.places[key]; n != nil {
					p.errorf(n, "it is unlimited and says %s: it can be one of them", key)
				}
			}
			continue
		}
		if len(fields) == 0 {
			p.errorf(f.name, "nothing is said about it: give it requests, limits, or unlimited: true")
			continue
		}
		out[f.key], _ = p.finish(at, p.all(&ds, base))
	}
	return out
}

func (p *reader) replaces(n ast.Node) (all []string) {
	for _, one := range p.list(n, "replaces") {
		fields, ok := p.fields(one, "replaces", 1)
		if !ok {
			continue
		}
		name := ""
		for _, f := range fields {
			if f.key != "name" {
				p.unknown(f, "replaces", []string{"name"})
				continue
			}
			name, _ = p.text(f.value)
		}
		if name == "" {
			p.errorf(one, "it does not say what it replaces: write name: NAME")
			continue
		}
		all = append(all, name)
	}
	return all
}

// descriptors parses a list of descriptors, numbered beginning with from.
func (p *reader) descriptors(path string, n ast.Node, depth, from int) (all []Descriptor) {
	if depth > maxDepth {
		p.errorf(n, "descriptors nest more than %d deep", maxDepth)
		return nil
	}
	for i, one := range p.list(n, "descriptors") {
		path := fmt.Sprintf("%s/%d", path, from+i)
		p.put(path, first(one))
		before := p.mistakes()
		fields, ok := p.fields(one, "a descriptor", depth)
		var d Descriptor
		for _, f := range fields {
			switch f.key {
			case "key":
				p.put(path, first(f.value))
				d.Key, _ = p.text(f.value)
			case "value":
				d.Value, _ = p.text(f.value)
			case "rate_limit":
				if _, none := p.plain(f.value).(*ast.NullNode); none {
					break
				}
				r := p.rule(path+"/rule", f.value, true)
				d.Rule = &r
				p.put(path+"/rule", first(f.name))
			case "shadow_mode":
				d.Shadow, _ = p.flag(f.value, f.key)
			case "quota_mode":
				d.Quota, _ = p.flag(f.value, f.key)
			case "share_threshold":
				p.put(path+"/share_threshold", first(f.name))
				d.Share, _ = p.flag(f.value, f.key)
			case "detailed_metric", "value_to_metric": // metrics have no key as a label
				_, _ = p.flag(f.value, f.key)
			case "metadata":
				_, _ = p.fields(f.value, "metadata", depth)
			case "descriptors":
				d.Descriptors = p.descriptors(path, f.value, depth+1, 0)
			default:
				p.unknown(f, "a descriptor", []string{
					"key", "value", "rate_limit", "shadow_mode", "quota_mode", "share_threshold", "detailed_metric",
					"value_to_metric", "metadata", "descriptors",
				})
			}
		}
		p.bad[path] = p.mistakes() > before
		if ok {
			all = append(all, d)
		} else {
			all = append(all, Descriptor{Key: "-", Value: fmt.Sprint(i)}) // keeps the numbers of the others
		}
	}
	return all
}
