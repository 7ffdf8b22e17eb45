package roles_test

import (
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/mutants"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/once"
)

// The table of these tests. The access token of team-a is "a", and so on.
var table = `
# a comment
team-a	` + roles.Credential("a") + `   a/secret/open/=lock  a/=lock,list   a/secret/=
shop    ` + roles.Credential("s1") + `,` + roles.Credential("s2") + `,cn:shop.example,uri:spiffe://example/shop  shop/=limit
ops     ` + roles.Credential("o") + `  =list,break
half    ` + roles.Credential("h") + `  =list  secret/=lock
all     ` + roles.Credential("all") + `  =lock,list,break,limit,once
asks    ` + roles.Credential("asks") + `  =lock  prod/=  own/=lock,break  own/secret/=lock
uid:1001 -  app/=lock,once x=y=list
`

func parse(t *testing.T, text string) *roles.Table {
	t.Helper()
	got, _, err := roles.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return got
}

func TestMay(t *testing.T) {
	t.Parallel()
	of := parse(t, table)
	for _, c := range []struct {
		token, verb, key string
		may              bool
	}{
		{"a", roles.Lock, "a/x", true},
		{"a", roles.Lock, "a/", true},
		{"a", roles.Lock, "a", false},
		{"a", roles.Lock, "", false},
		{"a", roles.Lock, "A/x", false},
		{"a", roles.Lock, "a%2Fx", false},
		{"a", roles.Lock, "ab/x", false},
		{"a", roles.Lock, "b/a/x", false},
		{"a", roles.Lock, "a/../b", true}, // a name like any other
		{"a", roles.Lock, "a/secret/x", false},
		{"a", roles.Lock, "a/secret", true},
		{"a", roles.Lock, "a/secret/open/x", true},
		{"a", roles.Lock, "a/\xff", true}, // the store refuses it
		{"a", roles.Break, "a/x", false},
		{"a", "LOCK", "a/x", false},
		{"a", "", "a/x", false},

		// Listing is of all that is below.
		{"a", roles.List, "a/x", true},
		{"a", roles.List, "a/secret/", false},
		{"a", roles.List, "a/sec", false}, // has a/secret/ below it
		{"a", roles.List, "a/", false},
		{"a", roles.List, "", false},
		{"o", roles.List, "", true},
		{"o", roles.List, "x", true},
		{"h", roles.List, "", false},
		{"h", roles.List, "s", false},
		{"h", roles.List, "t", true},
		{"h", roles.List, "secret/x", false},

		// Several access tokens of one caller.
		{"s1", roles.Limit, "shop/1", true},
		{"s2", roles.Limit, "shop/1", true},
		{"s2", roles.Lock, "shop/1", false},

		// The locks of operations.
		{"all", roles.Lock, once.LockPrefix + "op", false},
		{"all", roles.Lock, "once", true},
		{"all", roles.Once, "op", true},
		{"all", roles.Break, once.LockPrefix + "op", true},
		{"all", roles.List, once.LockPrefix, true},

		// Requests to release a lock.
		{"h", roles.List, baton.AskPrefix + "t", true},
		{"h", roles.List, baton.AskPrefix + "secret/x", false},
		{"h", roles.List, "@a", false}, // has @ask/secret/x below it
		{"all", roles.Lock, baton.AskPrefix + "x", true},
		{"asks", roles.Lock, "x", true},
		{"asks", roles.Lock, baton.AskPrefix + "x", false},
		{"asks", roles.Lock, baton.AskPrefix + "prod/db", false},
		{"asks", roles.Lock, baton.AskPrefix + "own/x", true},
		{"asks", roles.Lock, baton.AskPrefix + "own/secret/x", false},
	} {
		r, err := of.ByToken(c.token)
		if err != nil {
			t.Fatal(err)
		}
		err = r.May(c.verb, c.key)
		if (err == nil) != c.may {
			t.Errorf("%s: may %s %q: %v, want %v", r.Name(), c.verb, c.key, err, c.may)
		}
		if denied, ok := errors.AsType[*roles.DeniedError](err); err != nil && (!ok || denied.Caller != r.Name() || denied.Verb != c.verb || denied.Key != c.key) {
			t.Errorf("the error is %#v", err)
		}
	}
}

func TestMaySome(t *testing.T) {
	t.Parallel()
	of := parse(t, table)
	for _, c := range []struct {
		token, prefix string
		may           bool
	}{
		{"a", "", true},
		{"a", "a/", true},
		{"a", "a/sec", true},
		{"a", "a/x", true},
		{"a", "a/secret/", false},
		{"a", "b", false},
		{"s1", "", false},
		{"s1", "shop/", false},
		{"h", "t", true},
		{"h", "secret/", false},
		{"all", "x", true},
	} {
		r, err := of.ByToken(c.token)
		if err != nil {
			t.Fatal(err)
		}
		if got := r.MaySome(roles.List, c.prefix); got != c.may {
			t.Errorf("%s: may list some below %q: %v", r.Name(), c.prefix, got)
		}
	}
	if r := roles.Everything(""); !r.MaySome(roles.List, "x") || r.MaySome("", "x") {
		t.Error("a caller that may do everything")
	}
}

func TestDeniedErrorIsHarmless(t *testing.T) {
	t.Parallel()
	r := roles.Everything("x")
	err := r.May("\x1b[2J", "a\u202eb\n\x1b]0;t\x07")
	if err == nil || strings.ContainsAny(err.Error(), "\x1b\n\u202e\x07") {
		t.Errorf("the error is %q", err)
	}
	if err := r.May(roles.Lock, once.LockPrefix+"x"); err == nil || !strings.Contains(err.Error(), "ask for once instead") {
		t.Errorf("the error is %v", err)
	}
	if err := r.May(roles.Break, "k"); err != nil {
		t.Error(err)
	}
}

func TestByUID(t *testing.T) {
	t.Parallel()
	of := parse(t, table)
	r, err := of.ByUID(1001)
	if err != nil || r.Name() != "uid:1001" || r.May(roles.Once, "app/x") != nil || r.May(roles.List, "x=yz") != nil {
		t.Errorf("%v, %v", r, err)
	}
	for _, uid := range []int64{0, 1002, -1, 1001 + 1<<32} {
		if r, err := of.ByUID(uid); !errors.As(err, new(*roles.UnknownError)) {
			t.Errorf("user %d is %v: %v", uid, r, err)
		}
	}
	for _, token := range []string{"", "-", "uid:1001", "b", roles.Credential("a"), "A"} {
		if r, err := of.ByToken(token); !errors.As(err, new(*roles.UnknownError)) {
			t.Errorf("%q is %v: %v", token, r, err)
		}
	}
}

func TestByCertificate(t *testing.T) {
	t.Parallel()
	of := parse(t, table+"two cn:two,uri:spiffe://example/two =list\n")
	certificate := func(cn string, uris ...string) *x509.Certificate {
		c := &x509.Certificate{Subject: pkix.Name{CommonName: cn}}
		for _, text := range uris {
			u, err := url.Parse(text)
			if err != nil {
				t.Fatal(err)
			}
			c.URIs = append(c.URIs, u)
		}
		return c
	}
	for _, c := range []struct {
		of   *x509.Certificate
		want string // "": none
	}{
		{certificate("shop.example"), "shop"},
		{certificate("", "spiffe://example/shop"), "shop"},
		{certificate("shop.example", "spiffe://example/shop"), "shop"},
		{certificate("unknown", "spiffe://example/unknown", "spiffe://example/shop"), "shop"},
		{certificate("shop.example", "spiffe://example/two"), ""},
		{certificate("spiffe://example/shop"), ""},
		{certificate("Shop.example"), ""},
		{certificate(""), ""},
		{certificate("", "spiffe://example/shop/x"), ""},
	} {
		r, err := of.ByCertificate(c.of)
		switch {
		case c.want == "" && !errors.As(err, new(*roles.UnknownError)):
			t.Errorf("%v %v is %v: %v", c.of.Subject, c.of.URIs, r, err)
		case c.want != "" && (err != nil || r.Name() != c.want):
			t.Errorf("%v %v is %v: %v, want %s", c.of.Subject, c.of.URIs, r, err, c.want)
		}
	}
	if r, err := roles.OfCertificate(certificate("a", "spiffe://b")); err != nil || r.Name() != "uri:spiffe://b" || r.May(roles.Break, "x") != nil {
		t.Errorf("%v, %v", r, err)
	}
	if _, err := roles.OfCertificate(certificate("")); !errors.As(err, new(*roles.UnknownError)) {
		t.Error(err)
	}
}

// secret stands in the wrong places of files.
const secret = "xq7Zk9"

func TestMistakes(t *testing.T) {
	t.Parallel()
	a, b := roles.Credential("a"), roles.Credential("b")
	for _, c := range []struct{ text, want string }{
		{"x " + a, "line 1: a line is NAME CREDENTIALS PREFIX=VERBS …, and this one has 2 columns"},
		{"x", "has 1 columns"},
		{"\n\nx " + a + " a/=lokc", "line 3: column 3: verbs are lock, list, break, limit, giveback, once, separated by commas: did you mean lock?"},
		{"x " + a + " a/=" + secret, "verbs are"},
		{"x " + a + " a/=lock,", "verbs are"},
		{"x " + a + " a/=lock,lock", "the verb lock is there twice"},
		{"x " + a + " a/=lock b/=list a/=list", "column 5: the prefix is there twice"},
		{"x " + a + " a/", "column 3: it is PREFIX=VERBS"},
		{"x " + a + " a/=lock # comment", "a comment has a line of its own"},
		{"x " + secret + " a/=lock", "column 2: a credential begins with"},
		{"x sha256:" + secret + " a/=lock", "column 2: sha256: and 64 hexadecimal digits"},
		{"x " + a[:len(a)-2] + " a/=lock", "64 hexadecimal digits"},
		{"x " + a + "00 a/=lock", "64 hexadecimal digits"},
		{"x - a/=lock", "only a user of the host"},
		{"x cn: a/=lock", "the name of a certificate is missing"},
		{"x " + a + ", a/=lock", "a credential begins with"},
		{"x " + a + " a/=lock\nx " + b + " a/=lock", "line 2: the name in column 1 is that of line 1"},
		{"x " + a + " a/=lock\ny " + b + "," + a + " a/=lock", "line 2: column 2: a credential is that of line 1"},
		{"x cn:n a/=lock\ny cn:n a/=lock", "a credential is that of line 1"},
		{"x/" + secret + "! " + a + " a/=lock", "column 1: a name has letters"},
		{strings.Repeat("x", 65) + " " + a + " a/=lock", "column 1: a name has 1 to 64"},
		{"uid:x - a/=lock", "a user of the host is uid: and a number"},
		{"uid:01 - a/=lock", "a user of the host is uid: and a number"},
		{"uid:-1 - a/=lock", "a user of the host is uid: and a number"},
		{"uid:4294967296 - a/=lock", "a user of the host is uid: and a number"},
		{"uid:1 " + a + " a/=lock", "has the credential -"},
		{"x " + a + " once/=lock", "below once/ are the locks of operations"},
		{"x " + a + " once/a/=once", "without once/"},
		{"x " + a + " " + strings.Repeat("k", 513) + "=lock", "the prefix has 513 bytes"},
		{"x " + a + " a\x1b/=lock", "it has the character U+001B at byte 75"},
		{"x " + a + " a\u0085/=lock", "U+0085"},
		{"\ufeffx " + a + " a/=lock", "U+FEFF at byte 0"},
		{"x " + a + " a/=lock secret\u202e/=", "U+202E"},
		{"x " + a + " a/=lock\u00a0secret/=", "U+00A0"},
		{"x " + a + " \xff/=lock", "it is not UTF-8"},
		{"x " + a + strings.Repeat(" a/=", roles.MaxRules+1), "at most 1000 are allowed"},
		{"#" + strings.Repeat("x", roles.MaxFile), "at most 1048576 are allowed"},
	} {
		_, _, err := roles.Parse([]byte(c.text))
		if !errors.As(err, new(*roles.SyntaxError)) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.100q: %v, want %q", c.text, err, c.want)
		}
		if err != nil && strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the secret: %v", err)
		}
	}
}

// What is meant as a pattern, or as a path, is warned of also where it denies.
func TestWarningsOfPatterns(t *testing.T) {
	t.Parallel()
	for rule, want := range map[string]string{
		"secret/*=":    "has a *, which stands for itself",
		"secret/**=":   "has a *, which stands for itself",
		"*=lock":       "has a *, which stands for itself",
		"secret/?/x/=": "has a ?, which stands for itself",
		"/secret/=":    `begins with "/"`,
		"a/../b/=lock": `has ".."`,
		"secret=":      "",
		"a/..b/=lock":  "",
	} {
		_, warnings, err := roles.Parse([]byte("x " + roles.Credential("a") + " " + rule + "\n"))
		if err != nil || len(warnings) > 1 || fmt.Sprint(warnings) == "[]" != (want == "") || !strings.Contains(fmt.Sprint(warnings), want) {
			t.Errorf("%s: %v, %v, want %q", rule, warnings, err, want)
		}
	}
}

func TestWarnings(t *testing.T) {
	t.Parallel()
	_, warnings, err := roles.Parse([]byte("x " + roles.Credential("a") + " a=lock b/=lock c:=lock =lock d= once/x=break\r\n"))
	if err != nil || len(warnings) != 2 {
		t.Fatal(warnings, err)
	}
	for i, want := range []string{"line 1: the prefix number 1 does not end", "line 1: the prefix number 6 does not end"} {
		if got := warnings[i].String(); !strings.HasPrefix(got, want) {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

func TestReload(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "roles")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a, b := roles.Credential("a"), roles.Credential("b")
	write("x " + a + " a/=lock\ny " + b + " b/=lock\n")
	f, _, err := roles.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	change, _, err := f.Reload()
	if err != nil || !change.Empty() {
		t.Errorf("nothing has changed: %+v, %v", change, err)
	}
	for _, bad := range []string{
		"", "# nothing\n", "x " + a + "\n",
		"y " + b + " b/=lock,list\nx " + a + " a/=lock", // a/secret/= is yet to come
	} {
		write(bad)
		if _, _, err := f.Reload(); err == nil {
			t.Errorf("%q is accepted", bad)
		}
		if r, err := f.Table().ByToken("b"); err != nil || r.May(roles.Lock, "b/x") != nil {
			t.Errorf("after %q the table is not the one before: %v", bad, err)
		}
	}
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Reload(); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	before, err := f.Table().ByToken("a")
	if err != nil {
		t.Fatal(err)
	}
	write("z " + b + " b/=lock\nx " + a + " a/=lock,list\n")
	change, _, err = f.Reload()
	if err != nil || !slices.Equal(change.Added, []string{"z"}) || !slices.Equal(change.Removed, []string{"y"}) || !slices.Equal(change.Changed, []string{"x"}) {
		t.Errorf("%+v, %v", change, err)
	}
	if before.May(roles.List, "a/") == nil {
		t.Error("a role that was found before has changed")
	}
	if r, err := f.Table().ByToken("a"); err != nil || r.May(roles.List, "a/") != nil {
		t.Errorf("%v, %v", r, err)
	}
	write("z " + a + " b/=lock\nx " + b + " a/=lock,list\n")
	if change, _, err = f.Reload(); err != nil || !slices.Equal(change.Changed, []string{"x", "z"}) {
		t.Errorf("other credentials: %+v, %v", change, err)
	}
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Reload(); err == nil || !strings.Contains(err.Error(), "chmod go-w") {
		t.Errorf("a file that all can write: %v", err)
	}
}

// FuzzParse: no file lets a caller do more than a slow and plain reading of it says, and no
// message repeats a secret.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{table, "x ? a/=lock", "? x a/=?", "uid:1 - =list,break\n#?\nuid:? - ?=lock", "x cn:? ?=?", "\r\n\t x"} {
		f.Add([]byte(seed), roles.Lock, "a/x")
	}
	f.Fuzz(func(t *testing.T, text []byte, verb, key string) {
		mutants.Of(text, func(text []byte) { checkParse(t, text, verb, key) })
	})
}

func checkParse(t *testing.T, text []byte, verb, key string) {
	text = []byte(strings.ReplaceAll(strings.ReplaceAll(string(text), secret, ""), "?", secret))
	of, warnings, err := roles.Parse(text)
	messages := make([]string, 0, len(warnings)+1)
	for _, w := range warnings {
		messages = append(messages, w.String())
	}
	if err != nil {
		messages = append(messages, err.Error())
	}
	for _, m := range messages {
		if strings.Contains(m, secret) {
			t.Fatalf("%q shows a secret of %q", m, text)
		}
	}
	if err != nil {
		if !errors.As(err, new(*roles.SyntaxError)) || of != nil {
			t.Fatalf("%T %v, with a table: %v", err, err, of != nil)
		}
		return
	}
	for line := range strings.SplitSeq(string(text), "\n") {
		columns := strings.FieldsFunc(strings.TrimSuffix(line, "\r"), func(r rune) bool { return r == ' ' || r == '\t' })
		if len(columns) == 0 || columns[0][0] == '#' {
			continue
		}
		var r *roles.Role
		if columns[0] == "uid:1" {
			r, err = of.ByUID(1)
		} else if token, ok := map[string]string{roles.Credential("a"): "a", roles.Credential("o"): "o"}[columns[1]]; ok {
			r, err = of.ByToken(token)
		} else {
			continue
		}
		if err != nil || r.Name() != columns[0] {
			t.Fatalf("%q is %v: %v", line, r, err)
		}
		longest, may := -1, false
		for _, column := range columns[2:] {
			at := strings.LastIndexByte(column, '=')
			prefix := column[:at]
			has := slices.Contains(strings.Split(column[at+1:], ","), verb)
			if strings.HasPrefix(key, prefix) && len(prefix) > longest {
				longest, may = len(prefix), has
			}
		}
		for _, column := range columns[2:] {
			at := strings.LastIndexByte(column, '=')
			if verb == roles.List && strings.HasPrefix(column, key) && len(key) <= at && !slices.Contains(strings.Split(column[at+1:], ","), verb) {
				may = false
			}
		}
		if verb == "" || verb == roles.Lock && strings.HasPrefix(key, once.LockPrefix) {
			may = false
		}
		if err := r.May(verb, key); (err == nil) != may {
			t.Fatalf("%q: may %q %q: %v, want %v", line, verb, key, err, may)
		}
	}
}
