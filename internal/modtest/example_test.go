package modtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// withoutExample lists the packages that users import and that show nothing alone.
var withoutExample = []string{
	"clients",        // the clients in other languages
	"server/batonv1", // the messages of batonv1connect
}

// TestExamples takes the examples of each package as its users do who copy them: into a module
// of their own that requires ours. Those that print run, all others compile.
func TestExamples(t *testing.T) {
	t.Parallel()
	house := readHouse(t)
	o := newOutside(t, house)
	for _, m := range house.modules {
		if slices.Contains(neverFetched, m.folder) {
			continue
		}
		t.Run(m.folder, func(t *testing.T) {
			t.Parallel()
			if err := o.examples(t.Context(), m); err != nil {
				t.Error(err, hint)
			}
		})
	}
}

func TestExamplesCatch(t *testing.T) {
	t.Parallel()
	example := func(line, output string) string {
		return "package baton_test\n\nimport (\n\t\"fmt\"\n\n\t\"planted.test/baton\"\n)\n\nfunc Example() {\n\t" + line + "\n\tfmt.Println(1)\n\t// " + output + "\n}\n"
	}
	for _, c := range []struct{ name, example, want string }{
		{"sound", example("baton.Lock()", "Output: 1"), ""},
		{"none", "package baton_test\n", "planted.test/baton has no example"},
		{"it does not compile", example("baton.Unlock()", ""), "undefined: baton.Unlock"},
		{"it prints something else", example("baton.Lock()", "Output: 2"), "want:\n2"},
		{"it needs another file of the test", example("baton.Lock()\n\thelp()", ""), "undefined: help"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			for name, text := range map[string]string{
				"go.mod":          "module planted.test/baton\n\ngo 1.26\n",
				"lock.go":         "package baton\n\nfunc Lock() {}\n",
				"help_test.go":    "package baton_test\n\nfunc help() {}\n",
				"example_test.go": c.example,
			} {
				if err := os.WriteFile(filepath.Join(top, name), []byte(text), 0o666); err != nil {
					t.Fatal(err)
				}
			}
			planted, err := readTree(t.Context(), top)
			if err != nil {
				t.Fatal(err)
			}
			err = newOutside(t, planted).examples(t.Context(), planted.modules[0])
			if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

var printing = regexp.MustCompile(`(?m)^\s*// (Unordered o|O)utput:`)

// examples copies the examples of all packages of a module that others import into an empty
// module that requires it. It runs those that print, and compiles the others.
func (o outside) examples(ctx context.Context, m module) error {
	dir, err := o.user(ctx, m)
	if err != nil {
		return err
	}
	list, err := o.run(ctx, dir, "list", "-f", "{{.ImportPath}} {{.Name}} {{.Dir}}", m.path+"/...")
	if err != nil {
		return err
	}
	var run, vet []string
	for line := range strings.Lines(list) {
		name, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
		kind, from, _ := strings.Cut(rest, " ")
		of, _ := o.tree.owner(name)
		short := strings.TrimPrefix(strings.TrimPrefix(name, m.path), "/")
		if of.path != m.path || kind == "main" || slices.Contains(strings.Split(name, "/"), "internal") || slices.Contains(withoutExample, short) {
			continue
		}
		to := filepath.Join(dir, "of", filepath.FromSlash(short))
		files, err := filepath.Glob(filepath.Join(from, "example*_test.go"))
		if err != nil {
			return err
		}
		prints, found := false, false
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err == nil {
				err = errors.Join(os.MkdirAll(to, 0o777), os.WriteFile(filepath.Join(to, filepath.Base(file)), text, 0o666))
			}
			if err != nil {
				return err
			}
			found = found || strings.Contains(string(text), "\nfunc Example")
			prints = prints || printing.Match(text)
		}
		at := "./" + filepath.ToSlash(filepath.Join("of", short))
		switch {
		case !found:
			return fmt.Errorf("%s has no example in a file example_test.go", name)
		case prints:
			run = append(run, at)
		default:
			vet = append(vet, at)
		}
	}
	if len(vet) > 0 {
		if _, err := o.run(ctx, dir, append([]string{"vet"}, vet...)...); err != nil {
			return err
		}
	}
	if len(run) > 0 {
		_, err = o.run(ctx, dir, append([]string{"test"}, run...)...)
	}
	return err
}
