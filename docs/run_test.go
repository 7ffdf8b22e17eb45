//go:build unix

package docs

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

// command is a folder that has the commands baton and baton-lab, which are built once.
var command = sync.OnceValues(func() (dir string, err error) {
	err = site.Try(func() { dir = filepath.Dir(testserver.Baton(&site)) })
	if err == nil {
		var out []byte
		out, err = exec.Command("go", "build", "-o", dir, "github.com/batonhq/baton/lab/cmd/baton-lab").CombinedOutput()
		if err != nil {
			err = fmt.Errorf("build baton-lab: %w\n%s", err, out)
		}
	}
	return dir, err
})

var site testserver.Site

func TestMain(m *testing.M) {
	code := m.Run()
	site.Close()
	os.Exit(code)
}

func TestRun(t *testing.T) {
	t.Parallel()
	ran := 0
	for _, p := range pages(t) {
		if !strings.Contains(p.text, "\n```sh run") {
			continue
		}
		ran++
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			for _, problem := range run(t, p) {
				t.Error(problem)
			}
		})
	}
	if ran == 0 {
		t.Error("no page has commands that run")
	}
}

// run runs the marked commands of a page in a folder of their own. What a block exports, and where it
// goes, holds for those after it.
func run(t *testing.T, p page) (problems []string) {
	t.Helper()
	bin, err := command()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	was := filepath.Join(t.TempDir(), "was")
	if err := os.WriteFile(was, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	printed, fresh := "", false // whether the block before ran
	for _, b := range p.blocks {
		problem := func(format string, args ...any) {
			problems = append(problems, fmt.Sprintf("%s:%d: ", p.name, b.Line)+fmt.Sprintf(format, args...))
		}
		ran := false
		first, want, _ := strings.Cut(b.Marks, " exit=")
		switch name, isFile := strings.CutPrefix(b.Marks, "file="); {
		case isFile:
			if err := os.WriteFile(filepath.Join(dir, name), []byte(b.Text), 0o700); err != nil {
				t.Fatal(err)
			}
		case b.Language == "sh" && (first == "run" || b.Marks == "hidden"):
			out, errs, code := shell(t, dir, bin, was, b.Text)
			if want == "" {
				want = "0"
			}
			if fmt.Sprint(code) != want {
				problem("exit code %d, want %s\n%s\n%s%s", code, want, b.Text, out, errs)
			}
			printed, ran = out, true
		case b.Language == "text" && fresh:
			if !shows(b.Text).MatchString(printed) {
				problem("the commands do not print\n%s\nbut\n%s", b.Text, printed)
			}
		}
		fresh = ran
	}
	return problems
}

// shell runs commands, and ends what they leave running when the test ends.
func shell(t *testing.T, dir, bin, was, text string) (out, errs string, code int) {
	t.Helper()
	text = strings.ReplaceAll(text, "go run ./cmd/baton ", "baton ")
	cmd := exec.Command("sh", "-euc", ". '"+was+"'\ntrap 'code=$?; { export -p; echo \"cd \\\"$PWD\\\"\"; } >'\"'"+was+"'\"'; exit $code' EXIT\n"+text)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "HOME="+dir, "XDG_STATE_HOME="+filepath.Join(dir, "state"), "BATON_STORE=")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var printed [2]*os.File // no pipes: what is left running would hold them open
	for i := range printed {
		file, err := os.Create(fmt.Sprint(was, i))
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		printed[i] = file
	}
	cmd.Stdout, cmd.Stderr = printed[0], printed[1]
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // there may be none left
	if err := cmd.Wait(); err != nil {
		exit, ok := errors.AsType[*exec.ExitError](err)
		if !ok {
			t.Fatal(err)
		}
		code = exit.ExitCode()
	}
	var texts [2]string
	for i, file := range printed {
		text, err := os.ReadFile(file.Name())
		if err != nil {
			t.Fatal(err)
		}
		texts[i] = string(text)
	}
	return texts[0], texts[1], code
}

// shows matches what prints a block of text.
func shows(block string) *regexp.Regexp {
	return regexp.MustCompile("(?m)^" + strings.ReplaceAll(regexp.QuoteMeta(strings.TrimSpace(block)), "…", ".*") + "$")
}
