package roles

import (
	"bytes"
	"cmp"
	"encoding/hex"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/suggest"
)

const (
	// MaxFile is the largest size of a file of roles, in bytes.
	MaxFile = 1 << 20

	// MaxRules is the largest number of prefixes of one caller.
	MaxRules = 1000

	maxName = 64
)

// A SyntaxError refuses a line of a file of roles. It repeats nothing of the line, which
// may have a secret in the wrong column.
type SyntaxError struct {
	Line   int
	Reason string
}

func (e *SyntaxError) Error() string { return fmt.Sprintf("line %d: %s", e.Line, e.Reason) }

// A Warning is about a legal line that its author may not have meant.
type Warning struct {
	Line   int
	Reason string
}

func (w Warning) String() string { return fmt.Sprintf("line %d: %s", w.Line, w.Reason) }

// Parse reads a file of roles. The error is a *SyntaxError.
func Parse(text []byte) (*Table, []Warning, error) {
	p := &parser{table: newTable(), lines: make(map[string]int)}
	if len(text) > MaxFile {
		return nil, nil, &SyntaxError{1, fmt.Sprintf("the file has %d bytes, at most %d are allowed", len(text), MaxFile)}
	}
	for line := range bytes.Lines(text) {
		p.line++
		if err := p.parse(string(bytes.TrimSuffix(bytes.TrimSuffix(line, []byte("\n")), []byte("\r")))); err != nil {
			return nil, nil, &SyntaxError{p.line, err.Error()}
		}
	}
	return p.table, p.warnings, nil
}

type parser struct {
	table    *Table
	line     int
	lines    map[string]int // by name
	warnings []Warning
}

func blank(r rune) bool { return r == ' ' || r == '\t' }

func (p *parser) parse(line string) error {
	if err := legal(line); err != nil {
		return err
	}
	columns := strings.FieldsFunc(line, blank)
	if len(columns) == 0 || columns[0][0] == '#' {
		return nil
	}
	if len(columns) < 3 {
		return fmt.Errorf("a line is NAME CREDENTIALS PREFIX=VERBS …, and this one has %d columns", len(columns))
	}
	name := columns[0]
	if first := p.lines[name]; first != 0 {
		return fmt.Errorf("the name in column 1 is that of line %d, too: a caller has one line", first)
	}
	p.lines[name] = p.line
	r := &Role{name: name}
	if err := p.credentials(r, columns[1]); err != nil {
		return err
	}
	if len(columns)-2 > MaxRules {
		return fmt.Errorf("there are %d prefixes, at most %d are allowed", len(columns)-2, MaxRules)
	}
	for i, column := range columns[2:] {
		if err := p.rule(r, column); err != nil {
			return fmt.Errorf("column %d: %w", i+3, err)
		}
	}
	slices.SortFunc(r.rules, func(a, b rule) int { return cmp.Compare(a.prefix, b.prefix) })
	p.table.names[name] = r
	return nil
}

// legal refuses characters that an editor does not show, or shows as something else:
// control characters, marks that reorder text, and blanks that separate no columns.
func legal(line string) error {
	if !utf8.ValidString(line) {
		return fmt.Errorf("it is not UTF-8")
	}
	for i, r := range line {
		if r != '\t' && !unicode.IsPrint(r) {
			return fmt.Errorf("it has the character U+%04X at byte %d", r, i)
		}
	}
	return nil
}

// nameRune reports whether a name may have r: a character that needs no quotes in a log.
func nameRune(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-@", r)
}

// CheckName refuses a name that no caller with an access token or a certificate can have.
// The error does not repeat the name.
func CheckName(name string) error {
	switch {
	case name == "" || len(name) > maxName:
		return fmt.Errorf("a name has 1 to %d characters", maxName)
	case strings.ContainsFunc(name, func(r rune) bool { return !nameRune(r) }):
		return fmt.Errorf("a name has letters and digits of ASCII, and . _ - @")
	}
	return nil
}

// credentials reads column 2, and the number of a user of the host in column 1.
func (p *parser) credentials(r *Role, column string) error {
	if number, ok := strings.CutPrefix(r.name, "uid:"); ok {
		uid, err := strconv.ParseUint(number, 10, 32)
		switch {
		case err != nil || strconv.FormatUint(uid, 10) != number:
			return fmt.Errorf("column 1: a user of the host is uid: and a number")
		case column != "-":
			return fmt.Errorf("column 2: a user of the host has the credential -")
		}
		p.table.users[int64(uid)] = r
		return nil
	}
	if err := CheckName(r.name); err != nil {
		return fmt.Errorf("column 1: %w, or is uid: and a number", err)
	}
	if column == "-" {
		return fmt.Errorf("column 2: only a user of the host, such as uid:1001, has the credential -")
	}
	for one := range strings.SplitSeq(column, ",") {
		if err := p.credential(r, one); err != nil {
			return fmt.Errorf("column 2: %w", err)
		}
	}
	return nil
}

func (p *parser) credential(r *Role, text string) error {
	kind, value, _ := strings.Cut(text, ":")
	var taken *Role
	switch kind {
	case "sha256":
		var sum hash
		digest, err := hex.DecodeString(value)
		if err != nil || copy(sum[:], digest) != len(sum) || len(digest) != len(sum) {
			return fmt.Errorf("sha256: and 64 hexadecimal digits stand for an access token: see baton token new")
		}
		taken = p.table.tokens[sum]
		p.table.tokens[sum] = r
	case "cn", "uri":
		if value == "" {
			return fmt.Errorf("the name of a certificate is missing")
		}
		taken = p.table.certificates[text]
		p.table.certificates[text] = r
	default:
		return fmt.Errorf("a credential begins with sha256:, cn: or uri:. An access token itself is not written here, but its hash: see baton token new")
	}
	if taken != nil {
		return fmt.Errorf("a credential is that of line %d, too", p.lines[taken.name])
	}
	r.credentials = append(r.credentials, text)
	return nil
}

// rule reads PREFIX=VERBS.
func (p *parser) rule(r *Role, column string) error {
	at := strings.LastIndexByte(column, '=')
	switch {
	case column[0] == '#' && at < 0:
		return fmt.Errorf("a comment has a line of its own")
	case at < 0:
		return fmt.Errorf("it is PREFIX=VERBS, and has no =")
	}
	one := rule{prefix: column[:at]}
	if len(one.prefix) > check.MaxKey {
		return fmt.Errorf("the prefix has %d bytes, at most %d are allowed", len(one.prefix), check.MaxKey)
	}
	for _, other := range r.rules {
		if other.prefix == one.prefix {
			return fmt.Errorf("the prefix is there twice")
		}
	}
	if column[at+1:] != "" {
		for verb := range strings.SplitSeq(column[at+1:], ",") {
			switch {
			case !slices.Contains(verbs, verb):
				return fmt.Errorf("verbs are %s, separated by commas%s", strings.Join(verbs, ", "), meant(verb))
			case slices.Contains(one.verbs, verb):
				return fmt.Errorf("the verb %s is there twice", verb)
			case verb != List && verb != Break && strings.HasPrefix(one.prefix, onceKeys):
				return fmt.Errorf("below %s are the locks of operations, which one may %s or %s; for the verb %s the prefix is that of the operation, without %s", onceKeys, List, Break, Once, onceKeys)
			}
			one.verbs = append(one.verbs, verb)
		}
	}
	if reason := doubtful(one); reason != "" {
		p.warnings = append(p.warnings, Warning{p.line, fmt.Sprintf("the prefix number %d %s", len(r.rules)+1, reason)})
	}
	r.rules = append(r.rules, one)
	return nil
}

// doubtful returns why the author of a rule may not have meant it, or "". For example, a
// rule that denies by a pattern denies almost no key.
func doubtful(one rule) string {
	for _, mark := range []string{"*", "?"} {
		if strings.Contains(one.prefix, mark) {
			return fmt.Sprintf("has a %s, which stands for itself: there are no patterns, and a prefix is that of all keys which begin with it", mark)
		}
	}
	switch end := len(one.prefix) - 1; {
	case strings.HasPrefix(one.prefix, "/"):
		return `begins with "/", and is only that of keys which do`
	case slices.Contains(strings.Split(one.prefix, "/"), ".."):
		return `has "..", which stands for itself: keys are no paths`
	case end >= 0 && len(one.verbs) > 0 && one.prefix[end] != '/' && one.prefix[end] != ':':
		return `does not end in "/" or ":", and is that of longer names, too`
	}
	return ""
}

// meant suggests a verb.
func meant(word string) string {
	if near := suggest.Nearest(word, verbs); near != "" {
		return fmt.Sprintf(": did you mean %s?", near)
	}
	return ""
}
