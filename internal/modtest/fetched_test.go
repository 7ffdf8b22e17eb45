package modtest

import (
	"cmp"
	"flag"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

var (
	writeTidy = flag.Bool("tidy", false, "write the go.mod and go.sum that are not tidy")
	whole     = flag.Bool("whole", false, "compile all packages of the library, with the clients of all stores: many minutes at the first time")
)

// neverFetched lists the modules that only this repository uses.
var neverFetched = []string{"lab", "interop", "internal/pagetest", "internal/tools"}

// tested lists the packages of the library that are built and tested outside the
// workspace: those that are quick and need no server. Of every other module all are.
var tested = []string{"driver", "once", "ratelimit", "store/memstore"}

const hint = `
This is how a program gets the module: outside the workspace, with what its go.mod alone
requires. If it works in the workspace, then
  - the module uses what the version of Baton that it requires lacks: release Baton, then
    raise the requirement in its go.mod; or
  - its go.mod or go.sum is not tidy: BATON_LONG=1 go test ./internal/modtest -run Tidy -tidy
If a download failed: run it once with a network.`

func TestModulesCanBeFetched(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	house := readHouse(t)
	o := newOutside(t, house)
	for _, m := range house.modules {
		if slices.Contains(neverFetched, m.folder) {
			continue
		}
		t.Run(m.folder, func(t *testing.T) {
			t.Parallel()
			if m.replaces {
				t.Errorf("%s/go.mod replaces or excludes a module, and nobody who fetches it does", m.folder)
			}
			tests := []string{m.path + "/..."}
			chosen := func(string) bool { return true }
			if m.folder == "." {
				tests = nil
				for _, name := range tested {
					tests = append(tests, m.path+"/"+name)
				}
				chosen = func(name string) bool { return *whole || name == m.path || slices.Contains(tests, name) }
			}
			if err := o.fetch(t.Context(), m, chosen, tests...); err != nil {
				t.Error(err, hint)
			}
		})
	}
}

func TestModulesAreTidy(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	house := readHouse(t)
	o := newOutside(t, house)
	for _, m := range house.modules {
		t.Run(m.folder, func(t *testing.T) {
			t.Parallel()
			goMod, others, err := o.tidy(t.Context(), m)
			if err != nil {
				t.Fatal(err, hint)
			}
			for name, want := range map[string]string{"go.mod": goMod, "go.sum": others} {
				file := filepath.Join(house.top, m.folder, name)
				text, err := os.ReadFile(file)
				if err != nil && want != "" {
					t.Fatal(err)
				}
				have, ours := string(text), ""
				if name == "go.sum" {
					ours, have = o.splitSums(have)
				}
				switch {
				case have == want:
				case *writeTidy:
					if err := os.WriteFile(file, []byte(insert(ours, want)), 0o666); err != nil {
						t.Error(err)
					}
				default:
					t.Errorf("%s is not tidy: BATON_LONG=1 go test ./internal/modtest -run Tidy -tidy", filepath.Join(m.folder, name))
				}
			}
		})
	}
}

// insert puts lines of a go.sum where they belong among others.
func insert(some, others string) string {
	at := len(others)
	for line := range strings.Lines(others) {
		if line > some {
			at = strings.Index(others, line)
			break
		}
	}
	return others[:at] + some + others[at:]
}

// TestWorkspaceHasAllModules is why one command sees all of the tree.
func TestWorkspaceHasAllModules(t *testing.T) {
	t.Parallel()
	var want []string
	for _, m := range readHouse(t).modules {
		want = append(want, m.path)
	}
	list := exec.CommandContext(t.Context(), "go", "list", "-m")
	list.Env = append(os.Environ(), "GOWORK=")
	out, err := list.Output()
	if err != nil {
		t.Fatal(err)
	}
	have := strings.Fields(string(out))
	slices.Sort(have)
	slices.Sort(want)
	if !slices.Equal(have, want) {
		t.Errorf("go.work uses %q, want %q: go work use FOLDER", have, want)
	}
}

// TestFetchCatches plants what works in a workspace and fails whoever fetches it.
func TestFetchCatches(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const library, adapter = "planted.test/baton", "planted.test/baton/adapters/x"
	adapterMod := "module " + adapter + "\n\ngo 1.26\n\nrequire " + library + " v0.1.0\n"
	sound := map[string]string{
		"go.work":              "go 1.26\n\nuse (\n\t.\n\t./adapters/x\n)\n\nreplace " + library + " v0.1.0 => ./\n",
		"go.mod":               "module " + library + "\n\ngo 1.26\n",
		"lock.go":              "package baton\n\nfunc Lock() {}\n",
		"adapters/x/go.mod":    adapterMod,
		"adapters/x/x.go":      "package x\n\nimport \"" + library + "\"\n\nfunc F() { baton.Lock() }\n",
		"adapters/x/x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) { F() }\n",
	}
	for _, c := range []struct {
		name    string
		release bool // v0.1.0 is a tag of what is sound
		changed map[string]string
		want    string
	}{
		{"sound", false, nil, ""},
		{"sound and released", true, nil, ""},
		{"v0.1.0 is not released and will have it", false, map[string]string{
			"more.go":         "package baton\n\nfunc Unlock() {}\n",
			"adapters/x/x.go": "package x\n\nimport \"" + library + "\"\n\nfunc F() { baton.Unlock() }\n",
		}, ""},
		{"released without it", true, map[string]string{
			"more.go":         "package baton\n\nfunc Unlock() {}\n",
			"adapters/x/x.go": "package x\n\nimport \"" + library + "\"\n\nfunc F() { baton.Unlock() }\n",
		}, "undefined: baton.Unlock"},
		{"only a test needs it", true, map[string]string{
			"more.go":              "package baton\n\nfunc Unlock() {}\n",
			"adapters/x/x_test.go": "package x\n\nimport (\n\t\"testing\"\n\n\t\"" + library + "\"\n)\n\nfunc TestF(t *testing.T) { baton.Unlock() }\n",
		}, "undefined: baton.Unlock"},
		{"a test fails", false, map[string]string{
			"adapters/x/x_test.go": "package x\n\nimport \"testing\"\n\nfunc TestF(t *testing.T) { t.Error(\"planted\") }\n",
		}, "planted"},
		{"a file is in no module", false, map[string]string{
			"adapters/x/x.go":     "package x\n\nimport (\n\t_ \"embed\"\n\n\t\"" + library + "\"\n)\n\n//go:embed bin/f\nvar f string\n\nfunc F() { baton.Lock() }\n",
			"adapters/x/bin/f":    "built",
			"adapters/x/bin/f.go": "package bin\n",
		}, "bin/f"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			top := t.TempDir()
			write := func(files map[string]string) {
				for name, text := range files {
					file := filepath.Join(top, name)
					if err := cmp.Or(os.MkdirAll(filepath.Dir(file), 0o777), os.WriteFile(file, []byte(text), 0o666)); err != nil {
						t.Fatal(err)
					}
				}
			}
			write(sound)
			if c.release {
				for _, args := range [][]string{{"init", "-q"}, {"add", "."}, {"-c", "user.name=x", "-c", "user.email=x", "commit", "-q", "-m", "x"}, {"tag", "v0.1.0"}} {
					git := exec.CommandContext(t.Context(), "git", args...)
					git.Dir = top
					if out, err := git.CombinedOutput(); err != nil {
						t.Skipf("git %q: %v\n%s", args, err, out)
					}
				}
			}
			write(c.changed)

			planted, err := readTree(t.Context(), top)
			if err != nil {
				t.Fatal(err)
			}
			m, _ := planted.module(adapter)
			o := newOutside(t, planted)
			err = o.fetch(t.Context(), m, func(string) bool { return true }, adapter)
			switch {
			case c.want == "" && err != nil:
				t.Error(err)
			case c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)):
				t.Errorf("the error is %v, want %q", err, c.want)
			}
		})
	}
}

func readHouse(t *testing.T) tree {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	house, err := readTree(t.Context(), top)
	if err != nil {
		t.Fatal(err)
	}
	if len(house.modules) < 4 || house.modules[0].folder == "" {
		t.Fatalf("found only the modules %v", house.modules)
	}
	return house
}
