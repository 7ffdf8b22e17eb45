package rules_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

// in writes files into a folder, an hour ago.
func in(t *testing.T, dir string, files map[string]string) {
	t.Helper()
	for name, text := range files {
		write(t, filepath.Join(dir, name), text, time.Now().Add(-time.Hour))
	}
}

// described asks for a descriptor of the domain shop.
func described(t *testing.T, l *rules.Limiter, key string) rules.Decision {
	t.Helper()
	return allow(t, l, rules.Request{Domain: "shop", Descriptions: []rules.Description{{Entries: []rules.Entry{{Key: key, Value: "v"}}}}})
}

// Several files, and those of a folder, are as one: parts of a domain come together.
func TestSeveralFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "folder.yaml"), 0o700); err != nil {
		t.Fatal(err)
	}
	in(t, dir, map[string]string{
		"b.yaml":    "domain: shop\ndescriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 1}}]\n---\ndomain: other",
		"a.yml":     "domain: shop\ndescriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]\n",
		".c.yaml":   "not read",
		"notes.txt": "not read",
	})
	alone := filepath.Join(t.TempDir(), "rules")
	write(t, alone, "rules: [{name: r, requests: 1, period: 1m}]\n---\ndomain: shop\ndescriptors: [{key: c, rate_limit: {unit: day, requests_per_unit: 3}}]", time.Now())
	all, err := rules.Load(alone, dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(all.Rules) != 1 || len(all.Domains) != 2 || len(all.Domains[0].Descriptors) != 3 || all.Domains[0].Descriptors[1].Key != "a" {
		t.Errorf("%+v", all)
	}
	l, err := rules.New(memstore.New(), all)
	if err != nil {
		t.Fatal(err)
	}
	for key, n := range map[string]int{"a": 2, "b": 1, "c": 3} {
		for i := range n + 1 {
			if d := described(t, l, key); d.OK != (i < n) {
				t.Errorf("%s, number %d: %+v", key, i, d)
			}
		}
	}
}

// Each mistake names its file and the line in it, whichever file it is found by.
func TestMistakesOfSeveralFiles(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	in(t, dir, map[string]string{
		"a.yaml": "domain: shop\ndescriptors:\n- key: a\n",
		"b.yaml": "# the second\n\ndomain: shop\ndescriptors:\n- key: a\n",
		"c.yaml": "rules:\n- {name: r, requests: x, period: 1m}\n",
		"d.yaml": "",
	})
	_, err := rules.Load(dir)
	at := func(name, rest string) string { return filepath.Join(dir, name) + rest }
	text := fmt.Sprint(err)
	last := 0
	for _, want := range []string{
		at("b.yaml", ":5:8: descriptor \"shop/a\": another descriptor of the list has this key and value\n    - key: a\n"),
		at("c.yaml", ":2:23: requests is a whole number"), at("d.yaml", ": there are no rules in it"),
	} {
		i := strings.Index(text, want)
		if i < last {
			t.Errorf("%q is missing, or not in its order, in\n%s", want, text)
		}
		last = max(i, last)
	}
	for path, want := range map[string]string{t.TempDir(): "no file whose name ends in .yaml or .yml", at("none", ""): "no such file"} {
		_, err := rules.Open(at("a.yaml", ""), path)
		if !errors.As(err, new(*os.PathError)) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", path, err)
		}
	}
	if _, err := rules.Open(); err == nil {
		t.Error("no file at all")
	}
}

// A folder is followed as a file is: files that change, come and go, and the links of a
// Kubernetes volume.
func TestFollowFolder(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	descriptor := func(key string) string {
		return "domain: shop\ndescriptors: [{key: " + key + ", rate_limit: {unit: day, requests_per_unit: 0}}]\n"
	}
	volume := func(name, key string) {
		t.Helper()
		if err := os.Mkdir(filepath.Join(dir, name), 0o700); err != nil {
			t.Fatal(err)
		}
		in(t, dir, map[string]string{name + "/c.yaml": descriptor(key)})
		link := filepath.Join(dir, "..new")
		if err := errors.Join(os.Symlink(name, link), os.Rename(link, filepath.Join(dir, "..data"))); err != nil {
			t.Fatal(err)
		}
	}
	in(t, dir, map[string]string{"a.yaml": descriptor("a")})
	volume("..1", "c")
	if err := os.Symlink("..data/c.yaml", filepath.Join(dir, "c.yaml")); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		f, err := rules.Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		l, err := rules.New(memstore.New(), f.Rules())
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error)
		go func() {
			ended <- l.Follow(ctx, f, func(err error) {
				if err != nil {
					t.Error(err)
				}
			})
		}()
		refuses := func(keys string) {
			t.Helper()
			time.Sleep(3 * time.Second) // a look, another one, and what follows
			for _, key := range []string{"a", "b", "c", "d"} {
				if d := described(t, l, key); d.OK == strings.Contains(keys, key) {
					t.Errorf("%s with rules for %q: %+v", key, keys, d)
				}
			}
		}
		refuses("ac")
		in(t, dir, map[string]string{"b.yaml": descriptor("b")})
		refuses("abc")
		if err := os.Remove(filepath.Join(dir, "a.yaml")); err != nil {
			t.Fatal(err)
		}
		refuses("bc")
		volume("..2", "d")
		refuses("bd")
		cancel()
		<-ended
	})
}

// What a file may cost is bounded before it is parsed: its time and its stack grow with the
// lines of a mapping. In braces there may be more.
func TestLongMappings(t *testing.T) {
	t.Parallel()
	lines := func(n int, indent string) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%sk%d: {requests: 2}\n", indent, i)
		}
		return b.String()
	}
	const head = "rules:\n- name: a\n  requests: 1\n  period: 1m\n  keys:"
	for name, c := range map[string]struct {
		text string
		want string // "" if it is right
	}{
		"customers":              {head + "\n" + lines(2_000, "    "), ""},
		"too many customers":     {head + "\n" + lines(10_001, "    "), "a mapping has more than 10000 lines"},
		"in braces":              {head + " {\n" + strings.ReplaceAll(lines(10_500, "    "), "}\n", "},\n") + "  }\n", ""},
		"no rules at all":        {strings.Repeat("a: 1\n", 20_000), "a mapping has more than 10000 lines"},
		"several mappings":       {strings.Repeat(head+"\n"+lines(5_000, "    ")+"---\n", 5), "a mapping has more than 10000 lines"},
		"lists of mappings":      {"rules:\n" + strings.Repeat("- name: a\n  requests: 1\n  period: 1m\n", 4_000), "another rule has this name"},
		"columns back and forth": {strings.Repeat("&a k: 1\n&aa k: 1\n", 6_000), "a mapping has more than 10000 lines"},
		"more than a file has":   {strings.Repeat("#\n", rules.MaxFile/2+1), "more than 4194304 bytes"},
	} {
		_, err := rules.Parse("rules.yaml", []byte(c.text))
		if text := fmt.Sprint(err); (err == nil) != (c.want == "") || !strings.Contains(text, c.want) {
			t.Errorf("%s: %.300s", name, text)
		}
	}
}
