//go:build unix

package pagestried

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
)

// says is what the commands of a page print, among other things.
var says = map[string][]string{
	"docs/coming-from/curator.md":         {"nightly ran\n"},
	"docs/coming-from/envoy-ratelimit.md": {"edge", "remote_address"},
	"docs/coming-from/etcd.md":            {"nightly ran\n"},
	"docs/coming-from/redisson.md":        {"nightly ran\n"},
	"docs/coming-from/shedlock.md":        {"nightly ran\n"},
	"docs/howto/kubernetes.md":            {"pod-1 leads scheduler\n", "nightly ran\n"},
	"docs/tutorials/nightly.md":           {"nightly ran\n"},
}

// site has what all tests use, until the last one has ended.
var site testserver.Site

var built = sync.OnceValues(func() (dir string, err error) {
	err = site.Try(func() { dir = filepath.Dir(testserver.Baton(&site)) })
	return dir, err
})

func TestMain(m *testing.M) {
	code := m.Run()
	site.Close()
	os.Exit(code)
}

// command is the folder with the command, which is built once.
func command(t *testing.T) string {
	t.Helper()
	dir, err := built()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// TestCommands runs the commands of each page, in the order in which they stand there and
// in one folder, which has the rules of the page and two scripts. What is for Kubernetes is
// parsed, and the commands of its containers run. The examples of the latest version are
// those of the repository, and so is a program that the page shows and runs. The names of
// servers become those of real ones. A block of "text" is what the commands print, with "…" for what differs.
func TestCommands(t *testing.T) {
	t.Parallel()
	bin := command(t)
	all, err := pages(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	ran := make(map[string]bool)
	for _, p := range all {
		var script strings.Builder
		rules := ""
		var prints []string
		for _, b := range p.blocks {
			switch b.Language {
			case "sh":
				script.WriteString(b.Text)
			case "yaml":
				if !forKubernetes(b) {
					rules = b.Text
					continue
				}
				commands, err := containers(b.Text)
				if err != nil {
					t.Errorf("%s: %v\n%s", p.path, err, b.Text)
				}
				script.WriteString(commands)
			case "text":
				prints = append(prints, b.Text)
			}
		}
		if script.Len() == 0 {
			if len(prints) > 0 {
				t.Errorf("%s shows what no command prints", p.path)
			}
			continue
		}
		ran[p.path] = true
		t.Run(strings.TrimSuffix(filepath.Base(p.path), ".md"), func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			for name, text := range map[string]string{
				"rules.yaml": rules, "nightly.sh": "#!/bin/sh\necho nightly ran\n", "scheduler": "#!/bin/sh\necho \"$BATON_OWNER leads $BATON_KEY\"\n",
			} {
				if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
			}
			cmd := exec.Command("sh", "-euc", ours(t, p, here(t, script.String())))
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "XDG_STATE_HOME="+dir, "BATON_STORE=", "BATON_LANG=en")
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			err := cmd.Run()
			out := stdout.String() + stderr.String()
			if err != nil {
				t.Errorf("%s\n%v\n%s", script.String(), err, out)
			}
			for _, want := range says[p.path] {
				if !strings.Contains(out, want) {
					t.Errorf("the commands do not print %q:\n%s", want, out)
				}
			}
			for _, want := range prints {
				if !printed(want).MatchString(stdout.String()) {
					t.Errorf("the commands do not print\n%s\nbut\n%s", want, out)
				}
			}
		})
	}
	for name := range says {
		if !ran[name] {
			t.Errorf("%s shows no command", name)
		}
	}
}

// latest is a command that runs an example of the latest version.
var latest = regexp.MustCompile(`\bgo run github\.com/batonhq/baton/examples/(\w+)@latest\b`)

// ours replaces the examples of the latest version by those of the repository, and what a
// page does to build its own program by the example with the same code: what is released
// last is not what the page shows.
func ours(t *testing.T, p page, script string) string {
	t.Helper()
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	script = latest.ReplaceAllString(script, "go run -C '"+repo+"' ./examples/$1")
	if !strings.Contains(script, "go run . ") {
		return script
	}
	mains, err := filepath.Glob("../../examples/*/main.go")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range mains {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if !slices.Contains(p.blocks, pagecode.Block{Language: "go", Text: string(text)}) {
			continue
		}
		program := filepath.Join(t.TempDir(), "program")
		if out, err := exec.Command("go", "build", "-o", program, filepath.Dir(name)).CombinedOutput(); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return strings.NewReplacer("go mod init ", ": ", "go get github.com/batonhq/baton@latest", ":", "go mod tidy", ":", "go run . ", "'"+program+"' ").Replace(script)
	}
	t.Fatalf("%s runs a program that is no example", p.path)
	return ""
}

// printed matches the output that has a block of text.
func printed(block string) *regexp.Regexp {
	return regexp.MustCompile("(?m)^" + strings.ReplaceAll(regexp.QuoteMeta(block), "…", ".*"))
}

func TestPrinted(t *testing.T) {
	t.Parallel()
	const out = "first\nsold   1523 of 100, oversold   100 of 100\ntook 3ms\n"
	for block, want := range map[string]bool{
		"sold   … of 100, oversold   100 of 100\n": true,
		"sold   … of 100, oversold   101 of 100\n": false,
		"old   …\n":        false,
		"sold   …\ntook\n": false,
		"sold\n…took":      false,
	} {
		if printed(block).MatchString(out) != want {
			t.Errorf("whether %q is printed is not %v", block, want)
		}
	}
}

// here replaces the servers of the pages by real ones. A server that it does not know is
// an error, and so the test cannot ask a host of that name.
func here(t *testing.T, script string) string {
	t.Helper()
	for name, addr := range map[string]func() string{
		"redis://redis.internal:6379": func() string { return "redis://" + testserver.Redis(t).Addr },
		"etcd://etcd.internal:2379":   func() string { return "etcd://" + testserver.SharedEtcd(t).Addr },
		"zk://zk.internal:2181":       func() string { return "zk://" + testserver.SharedZooKeeper(t).Addr },
	} {
		if strings.Contains(script, name) {
			script = strings.ReplaceAll(script, name, addr())
		}
	}
	if strings.Contains(script, ".internal") {
		t.Fatalf("no server for a name in\n%s", script)
	}
	return script
}
