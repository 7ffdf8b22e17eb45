package rules

import (
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/suggest"
)

// first is the first token of a node.
func first(n ast.Node) *token.Token {
	switch n := n.(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		if !n.IsFlowStyle && len(n.Values) > 0 {
			return first(n.Values[0])
		}
	case *ast.MappingValueNode:
		return first(n.Key)
	}
	return n.GetToken()
}

// parse parses a text. It reports its error.
func (p *reader) parse(text string) (file *ast.File, err error) {
	defer func() { // a mistake of the library must not end a program that reloads a file
		if r := recover(); r != nil {
			err = fmt.Errorf("%v", r)
			p.add(nil, "", "it cannot be read as YAML")
		}
	}()
	tokens := lexer.Tokenize(text)
	depth := 0
	p.blocks.open, p.blocks.first = nil, nil
	for _, tk := range tokens {
		if at := p.blocks.next(tk, depth > 0); p.blocks.work > maxLines*maxLines {
			p.add(at, "", fmt.Sprintf("a mapping has more than %d lines, or several have many: write {KEY: VALUE, KEY: VALUE}, on as many lines as you like", maxLines))
			return nil, p.errs
		}
		switch tk.Type {
		case token.MappingStartType, token.SequenceStartType:
			if depth++; depth > maxDepth {
				p.add(tk, "", fmt.Sprintf("it nests more than %d deep", maxDepth))
				return nil, p.errs
			}
		case token.MappingEndType, token.SequenceEndType:
			depth--
		}
	}
	file, err = parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		var tk *token.Token
		reason := err.Error()
		if of, ok := err.(interface {
			GetToken() *token.Token
			GetMessage() string
		}); ok {
			tk, reason = of.GetToken(), of.GetMessage()
		}
		p.add(tk, "", "this is not YAML: "+reason)
		return nil, err
	}
	p.anchors, p.aliases = make(map[string]*ast.AnchorNode), make(map[*ast.AliasNode]*ast.AnchorNode)
	for _, doc := range file.Docs {
		if doc != nil && doc.Body != nil {
			ast.Walk(p, doc.Body)
		}
	}
	return file, nil
}

// blocks counts the lines of mappings that are written in lines.
type blocks struct {
	open  []block
	first *token.Token // of its line, without dashes
	work  int          // n² for each mapping with n lines
}

// A block is a mapping that has not ended.
type block struct{ column, lines int }

// next returns the first token of a token's line. In braces it counts no lines.
func (b *blocks) next(tk *token.Token, braces bool) *token.Token {
	if b.first == nil || b.first.Position.Line != tk.Position.Line || b.first.Type == token.SequenceEntryType {
		b.first = tk
	}
	column := b.first.Position.Column
	closed := func(x block) bool { return x.column > column }
	switch {
	case braces:
	case tk.Type == token.DocumentHeaderType:
		b.open = nil
	case tk.Type == token.SequenceEntryType: // its mapping is another one than that of the entry before
		b.open = slices.DeleteFunc(b.open, closed)
	case tk.Type == token.MappingValueType:
		b.open = slices.DeleteFunc(b.open, closed)
		if len(b.open) == 0 || b.open[len(b.open)-1].column < column {
			b.open = append(b.open, block{column: column})
		}
		top := &b.open[len(b.open)-1]
		top.lines++
		b.work += 2*top.lines - 1
	}
	return b.first
}

// Visit resolves aliases: the last anchor of the name before each.
func (p *reader) Visit(n ast.Node) ast.Visitor {
	switch x := n.(type) {
	case *ast.AnchorNode:
		if x.Name != nil {
			p.anchors[x.Name.GetToken().Value] = x
		}
	case *ast.AliasNode:
		if x.Value != nil {
			p.aliases[x] = p.anchors[x.Value.GetToken().Value]
		}
	}
	return p
}

// plain follows aliases and removes tags and anchors. It returns nil after an error,
// which it has reported.
func (p *reader) plain(n ast.Node) ast.Node {
	for range maxDepth {
		if p.nodes++; p.nodes > maxNodes {
			if p.nodes == maxNodes+1 {
				p.errorf(n, "it has more than %d parts", maxNodes)
			}
			return nil
		}
		switch x := n.(type) {
		case *ast.AnchorNode:
			n = x.Value
		case *ast.TagNode:
			n = x.Value
		case *ast.AliasNode:
			to := p.aliases[x]
			if to == nil {
				p.errorf(n, "no anchor with this name comes before it")
				return nil
			}
			n = to.Value
		case nil:
			return nil
		default:
			return n
		}
	}
	p.errorf(n, "it is an alias of itself")
	return nil
}

// field is one entry of a mapping.
type field struct {
	key   string
	name  ast.Node
	value ast.Node
}

// fields are the fields of a mapping, with those that << adds. ok is false if it is no
// mapping; an empty value is one without fields.
func (p *reader) fields(n ast.Node, what string, depth int) ([]field, bool) {
	at := n
	n = p.plain(n)
	if n == nil {
		return nil, false
	}
	var values []*ast.MappingValueNode
	switch x := n.(type) {
	case *ast.MappingNode:
		values = x.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{x}
	case *ast.NullNode:
		return nil, true
	default:
		p.errorf(at, "%s is written as lines of the form KEY: VALUE", what)
		return nil, false
	}
	if depth > maxDepth {
		p.errorf(at, "it nests more than %d deep", maxDepth)
		return nil, false
	}
	out := make([]field, 0, len(values))
	has := make(map[string]bool, len(values))
	var merged []ast.Node
	for _, v := range values {
		if v.Key == nil {
			continue
		}
		if v.Key.IsMergeKey() {
			merged = append(merged, v.Value)
			continue
		}
		key, ok := p.text(v.Key)
		if !ok {
			continue
		}
		if has[key] {
			p.errorf(v.Key, "%q is here twice", key)
			continue
		}
		has[key] = true
		out = append(out, field{key, v.Key, v.Value})
	}
	for _, m := range merged {
		all := []ast.Node{m}
		if list, ok := p.plain(m).(*ast.SequenceNode); ok {
			all = list.Values
		}
		for _, one := range all {
			more, _ := p.fields(one, "what << names", depth+1)
			for _, f := range more {
				if !has[f.key] {
					has[f.key] = true
					out = append(out, f)
				}
			}
		}
	}
	return out, true
}

func (p *reader) list(n ast.Node, what string) []ast.Node {
	switch x := p.plain(n).(type) {
	case nil, *ast.NullNode:
	case *ast.SequenceNode:
		return x.Values
	default:
		p.errorf(n, "%s is a list: begin each item with a dash", what)
	}
	return nil
}

// text is a scalar as it is written.
func (p *reader) text(n ast.Node) (string, bool) {
	switch x := p.plain(n).(type) {
	case nil:
		return "", false
	case *ast.NullNode:
		return "", true
	case *ast.StringNode:
		return x.Value, true
	case *ast.LiteralNode:
		return x.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		return strings.TrimSpace(x.GetToken().Value), true
	case *ast.MappingKeyNode:
		return p.text(x.Value)
	}
	p.errorf(n, "this must be a text")
	return "", false
}

func (p *reader) word(n ast.Node, what string) (string, bool) {
	s, ok := p.text(n)
	if ok && s == "" {
		p.errorf(n, "%s is empty", what)
	}
	return s, ok && s != ""
}

// number parses a number from 0 to the greatest of a limit.
func (p *reader) number(n ast.Node, what string) (int64, bool) {
	x := p.plain(n)
	if x == nil {
		return 0, false
	}
	text := strings.TrimSpace(x.GetToken().Value)
	switch x.(type) {
	case *ast.IntegerNode, *ast.FloatNode:
	default:
		if kind := x.GetToken().Type; kind == token.SingleQuoteType || kind == token.DoubleQuoteType {
			p.errorf(n, "%s is a whole number, without quotes", what)
		} else {
			p.errorf(n, "%s is a whole number, such as 100", what)
		}
		return 0, false
	}
	i, err := strconv.ParseInt(strings.ReplaceAll(text, "_", ""), 10, 64)
	switch {
	case strings.Contains(text, "__"), strings.HasSuffix(text, "_"):
		p.errorf(n, "%s is a whole number, such as 100 or 1_000", what)
	case err != nil && strings.Trim(text, "0123456789_") == "", i >= limits.MaxNumber:
		p.errorf(n, "%s is too large: at most %d can be counted", what, int64(limits.MaxNumber-1))
	case err != nil && strings.HasPrefix(text, "-"), i < 0:
		p.errorf(n, "%s must not be negative", what)
	case err != nil:
		p.errorf(n, "%s is a whole number, such as 100", what)
	default:
		return i, true
	}
	return 0, false
}

func (p *reader) flag(n ast.Node, what string) (bool, bool) {
	x := p.plain(n)
	if b, ok := x.(*ast.BoolNode); ok {
		return b.Value, true
	}
	if x != nil {
		p.errorf(n, "%s is true or false", what)
	}
	return false, false
}

var tooLong = regexp.MustCompile(`^([0-9.]+(ns|us|µs|ms|s|m|h))+$`)

func (p *reader) duration(n ast.Node, what string) (time.Duration, bool) {
	s, ok := p.text(n)
	if !ok {
		return 0, false
	}
	d, err := time.ParseDuration(s)
	switch {
	case err != nil && strings.Trim(s, "0123456789") == "" && s != "":
		p.errorf(n, "%s needs a unit, as in %ss or %sm", what, s, s)
	case err != nil && tooLong.MatchString(s):
		p.errorf(n, "%s is too long: at most %v", what, time.Duration(math.MaxInt64).Truncate(time.Hour))
	case err != nil && what == "period":
		p.errorf(n, "period is a duration, such as 30s, 1m or 24h, or one of day, week, month and year")
	case err != nil:
		p.errorf(n, "%s is a duration, such as 30s, 1m or 1h30m", what)
	case d <= 0:
		p.errorf(n, "%s must be above zero", what)
	default:
		return d, true
	}
	return 0, false
}

// unknown refuses a field.
func (p *reader) unknown(f field, of string, known []string) {
	if near := suggest.Nearest(f.key, known); near != "" {
		p.errorf(f.name, "%s has no field %q: did you mean %s?", of, f.key, near)
		return
	}
	p.errorf(f.name, "%s has no field %q: there are %s", of, f.key, strings.Join(known, ", "))
}
