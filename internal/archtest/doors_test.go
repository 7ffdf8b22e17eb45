package archtest

import (
	"cmp"
	"fmt"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
)

const module = "github.com/batonhq/baton"

// doors says which of our packages may import which others of ours. The line
// of a package is the one with the longest pattern that matches it; "store/*"
// also matches what lies deeper. Of the patterns behind the colon the last
// that matches decides, and one that begins with "!" forbids. "baton" is the
// root package. What a folder has below itself is open to it.
//
// A new arrow is a decision: argue for it in the change that adds it here.
const doors = `
	# The contract stands on nothing. What is legal is told apart, and limits are a contract of their own.
	driver:
	driver/check:       driver
	driver/limits:      driver driver/check
	driver/observe:     driver driver/limits

	# What everybody may lean on knows no store and nothing above itself.
	internal/*:         driver driver/* internal/* !internal/testserver !internal/faultproxy !internal/badstores
	internal/compattest: internal/pagecode internal/testserver
	internal/faultproxy: internal/testserver
	internal/cli:       baton driver internal/* open !internal/testserver !internal/faultproxy !internal/badstores
	internal/clitest:
	drivertest:         driver driver/* internal/* !internal/testserver !internal/faultproxy !internal/badstores
	internal/badstores:    driver driver/* internal/lockstate internal/quorum internal/rate internal/record store/memstore

	# Stores know the contract, not each other and not who calls them.
	store/*:            driver driver/* internal/* !internal/testserver !internal/faultproxy !internal/badstores
	store/redisstore/*: driver driver/* store/redisstore store/redisstore/internal/wire internal/* !internal/testserver !internal/faultproxy !internal/badstores

	# The front doors know the contract and no store.
	baton:              driver driver/check internal/acquire internal/bound internal/leasemath
	internal/acquire:   driver internal/bootclock internal/leasemath
	internal/bound:
	ratelimit:          driver driver/* internal/bootclock internal/local internal/quick internal/rate
	ratelimit/*:        ratelimit ratelimit/internal/front internal/remote
	ratelimit/rules:    driver driver/* ratelimit internal/ownfile internal/suggest
	once:               baton driver driver/check
	once/*:             baton driver driver/check once once/internal/*
	once/internal/calls: baton driver driver/check once once/internal/front
	once/internal/front: driver once
	guard:              driver driver/check
	election:           baton driver
	ratelimit/joblimit: baton driver ratelimit

	# The agent opens the front doors to other processes, and knows no store.
	agent:              baton driver driver/check election internal/flatjson internal/jsonlist internal/lockfeed internal/quick internal/roles internal/ownfile internal/suggest once ratelimit ratelimit/rules

	# So does the server, over a network. It makes leases of the contract itself, because it keeps none.
	server:             baton driver driver/check driver/limits election internal/bootclock internal/lockfeed internal/quick internal/roles internal/leasemath once ratelimit ratelimit/rules
	server/batonv1:
	server/internal/codec: internal/flatjson
	server/internal/handle: driver driver/check
	server/batonv1/batonv1connect: server/batonv1

	# Envoy's service is a front door for proxies.
	server/rls*:        driver driver/limits ratelimit ratelimit/rules

	# Metrics are made of what all front doors tell.
	adapters/metrics:   baton driver/observe election guard once ratelimit
	internal/textfile:  adapters/metrics

	# The store for the tests of programs stands beside what they use.
	batontest:          baton driver driver/* internal/leasemath store/memstore


	# Whoever puts a program together knows everything but the helpers of tests.
	clients:
	open:               * !lab* !drivertest !internal/testserver !internal/faultproxy
	cmd/*:              * !lab* !drivertest !internal/testserver !internal/faultproxy !internal/badstores
	server/page:        baton driver driver/* adapters/metrics internal/jsonlist internal/transcript once ratelimit ratelimit/top
	examples/*:         * !lab*

	# The laboratory, a module of its own, tries the others out, and none of them imports it.
	# What checks a history does not know how that came about.
	lab*:               * !drivertest !internal/badstores
	lab/verify/history:
	lab/verify/check:   lab/verify/history
	lab/verify/served:  driver driver/limits
	lab/verify/planted: driver driver/* internal/badstores store/memstore lab/verify/check
`

// pure lists the packages that reach no third-party package, on any platform.
var pure = []string{"baton", "driver", "store/memstore", "ratelimit", "ratelimit/httplimit", "ratelimit/top", "once", "once/httponce", "guard", "election", "ratelimit/joblimit", "driver/observe", "adapters/metrics", "batontest"}

// notInCommand reports whether a package is for trying things out, and no part of the command.
func notInCommand(imported string) bool {
	to, _ := ours(imported)
	return matches("lab*", to) || to == "internal/testserver" || to == "internal/faultproxy" || strings.HasPrefix(imported, "github.com/anishathalye/porcupine")
}

func TestDoorsAreOneWay(t *testing.T) {
	t.Parallel()
	house, err := load(os.DirFS("../.."), "")
	if err != nil {
		t.Fatal(err)
	}
	laboratory, err := load(os.DirFS("../../lab"), "lab")
	if err != nil {
		t.Fatal(err)
	}
	maps.Copy(house, laboratory)
	if len(house) < 5 || house["baton"] == nil || house["driver"] == nil {
		t.Fatalf("found only the packages %v", slices.Sorted(maps.Keys(house)))
	}
	problems := checkDoors(house, parseDoors(doors))
	problems = append(problems, reaches(house, pure, thirdParty)...)
	problems = append(problems, reaches(house, []string{"cmd/baton"}, notInCommand)...)
	for _, problem := range problems {
		t.Error(problem)
	}
}

// TestDoorsCatch plants violations and sees them found.
func TestDoorsCatch(t *testing.T) {
	t.Parallel()
	const rules = `
		driver:
		baton:          driver
		store/*:        driver internal/* !internal/testserver
		internal/*:     driver internal/*
		open:           *
		cmd/*:          *
	`
	sound := map[string]string{
		"go.mod":                   "module " + module,
		"doc.go":                   source("baton", module+"/driver"),
		"driver/d.go":              source("driver", "time"),
		"internal/keys/k.go":       source("keys"),
		"internal/testserver/s.go": source("testserver"),
		"store/a/a.go":             source("a", module+"/driver", module+"/internal/keys", module+"/store/a/wire", "example.com/client"),
		"store/a/a_test.go":        source("a", module+"/open", module+"/internal/testserver"),
		"store/a/wire/w.go":        source("wire", module+"/internal/keys"),
		"store/a/testdata/x.go":    source("x", module+"/open"),
		"open/o.go":                source("open", module+"/store/a", module),
		"cmd/baton/main.go":        source("main", module+"/open"),
		"bench/go.mod":             "module " + module + "/bench",
		"bench/b.go":               source("bench", module+"/nowhere"),
	}
	for _, c := range []struct {
		name, file, text, want string
	}{
		{name: "sound"},
		{"the contract imports a store", "driver/x.go", source("driver", module+"/store/a"), "driver imports store/a"},
		{"the lock imports a store", "x.go", source("baton", module+"/store/a"), "baton imports store/a"},
		{"a store imports the lock", "store/a/x.go", source("a", module), "store/a imports baton"},
		{"a store imports another", "store/b/b.go", source("b", module+"/store/a"), "store/b imports store/a"},
		{"a store imports a helper of tests", "store/a/x.go", source("a", module+"/internal/testserver"), "store/a imports internal/testserver"},
		{"only on another platform", "driver/x_windows.go", "//go:build windows\n\n" + source("driver", module+"/open"), "driver imports open"},
		{"a package without a rule", "misc/m.go", source("misc"), "misc has no line"},
		{"the contract reaches a third party", "driver/x.go", source("driver", "example.com/x"), "driver reaches example.com/x: driver/x.go"},
		{"the lock reaches one through others", "internal/keys/x.go", source("keys", "example.com/x"), "driver reaches example.com/x: driver/d.go, internal/keys/x.go"},
		{"the command reaches the laboratory", "open/x.go", source("open", module+"/lab/verify"), "cmd/baton reaches " + module + "/lab/verify: cmd/baton/main.go, open/x.go"},
		{"the command reaches the helpers of tests", "open/x.go", source("open", module+"/internal/testserver"), "cmd/baton reaches " + module + "/internal/testserver"},
		{"C is a third party", "driver/x.go", source("driver", "C"), "driver reaches C"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			files := make(fstest.MapFS)
			for name, text := range sound {
				files[name] = &fstest.MapFile{Data: []byte(text)}
			}
			if c.file != "" {
				files[c.file] = &fstest.MapFile{Data: []byte(c.text)}
			}
			rules := rules
			if strings.HasPrefix(c.file, "internal/keys") { // and the arrow that leads there
				files["driver/d.go"].Data = []byte(source("driver", module+"/internal/keys"))
				rules = strings.Replace(rules, "driver:", "driver: internal/keys", 1)
			}
			house, err := load(files, "")
			if err != nil {
				t.Fatal(err)
			}
			problems := append(checkDoors(house, parseDoors(rules)), reaches(house, []string{"baton", "driver"}, thirdParty)...)
			problems = append(problems, reaches(house, []string{"cmd/baton"}, notInCommand)...)
			got := strings.Join(problems, "\n")
			if c.want == "" && got != "" {
				t.Errorf("found in a sound house:\n%s", got)
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("found %q, want %q", got, c.want)
			}
		})
	}
}

func source(name string, imports ...string) string {
	s := "package " + name + "\n"
	for _, i := range imports {
		s += "import _ " + strconv.Quote(i) + "\n"
	}
	return s
}

// packages maps the folder of each package ("baton" is the root) to what it
// imports, and each import to a file that does. Tests are left out: they may
// use what they like.
type packages map[string]map[string]string

// load reads the imports of all files of a module, for every platform. The module is in the
// folder at.
func load(module fs.FS, at string) (packages, error) {
	house := make(packages)
	err := eachFile(module, false, func(name string) error {
		if path.Ext(name) != ".go" || strings.HasSuffix(name, "_test.go") {
			return nil
		}
		text, err := fs.ReadFile(module, name)
		if err != nil {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, text, parser.ImportsOnly)
		if err != nil {
			return err
		}
		pkg := path.Join(at, path.Dir(name))
		if pkg == "." {
			pkg = "baton"
		}
		if house[pkg] == nil {
			house[pkg] = make(map[string]string)
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return fmt.Errorf("%s: %w", name, err)
			}
			house[pkg][imported] = name
		}
		return nil
	})
	return house, err
}

// ours returns the folder of one of our packages.
func ours(imported string) (pkg string, ok bool) {
	if imported == module {
		return "baton", true
	}
	return strings.CutPrefix(imported, module+"/")
}

// thirdParty reports whether a package is neither ours nor of the standard
// library.
func thirdParty(imported string) bool {
	if _, ok := ours(imported); ok {
		return false
	}
	first, _, _ := strings.Cut(imported, "/")
	return strings.Contains(first, ".") || imported == "C"
}

// rule is one line of doors.
type rule struct {
	pattern string
	allowed []string
}

func parseDoors(text string) []rule {
	var rules []rule
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		pattern, allowed, ok := strings.Cut(strings.TrimSpace(line), ":")
		if ok {
			rules = append(rules, rule{pattern, strings.Fields(allowed)})
		}
	}
	// The longest pattern that matches is the first one found.
	slices.SortStableFunc(rules, func(a, b rule) int { return cmp.Compare(len(b.pattern), len(a.pattern)) })
	return rules
}

func (r rule) allows(pkg string) bool {
	allowed := false
	for _, p := range r.allowed {
		p, forbids := strings.CutPrefix(p, "!")
		if matches(p, pkg) {
			allowed = !forbids
		}
	}
	return allowed
}

func matches(pattern, pkg string) bool {
	if folder, ok := strings.CutSuffix(pattern, "*"); ok {
		return strings.HasPrefix(pkg, folder)
	}
	return pattern == pkg
}

func checkDoors(house packages, rules []rule) (problems []string) {
	for _, pkg := range slices.Sorted(maps.Keys(house)) {
		i := slices.IndexFunc(rules, func(r rule) bool { return matches(r.pattern, pkg) })
		if i < 0 {
			problems = append(problems, fmt.Sprintf("%s has no line in the table of doors", pkg))
			continue
		}
		for _, imported := range slices.Sorted(maps.Keys(house[pkg])) {
			to, ok := ours(imported)
			if !ok || strings.HasPrefix(to, pkg+"/") || rules[i].allows(to) {
				continue
			}
			problems = append(problems, fmt.Sprintf("%s imports %s (in %s), which the table of doors does not allow", pkg, to, house[pkg][imported]))
		}
	}
	return problems
}

// reaches follows the imports of each package in from to those that are bad.
func reaches(house packages, from []string, bad func(imported string) bool) (problems []string) {
	for _, root := range from {
		way := map[string]string{root: ""} // the files that lead to a package
		next := []string{root}
		for len(next) > 0 {
			pkg := next[0]
			next = next[1:]
			for _, imported := range slices.Sorted(maps.Keys(house[pkg])) {
				via := strings.TrimPrefix(way[pkg]+", "+house[pkg][imported], ", ")
				if bad(imported) {
					problems = append(problems, fmt.Sprintf("%s reaches %s: %s", root, imported, via))
				} else if to, ok := ours(imported); ok {
					if _, seen := way[to]; !seen {
						way[to] = via
						next = append(next, to)
					}
				}
			}
		}
	}
	return problems
}

// eachFile calls f for every file that people write: not those of hidden
// folders, of testdata and, unless nested, of other modules.
func eachFile(module fs.FS, nested bool, f func(name string) error) error {
	return fs.WalkDir(module, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if !d.IsDir() {
			return f(name)
		}
		if name == "." {
			return nil
		}
		if base := path.Base(name); base[0] == '.' || base[0] == '_' || base == "testdata" || base == "bin" || base == "dist" {
			return fs.SkipDir
		}
		if _, err := fs.Stat(module, name+"/go.mod"); err == nil && !nested {
			return fs.SkipDir
		}
		return nil
	})
}
