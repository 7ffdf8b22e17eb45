//go:build unix

package pagestried

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// A guide says how TestGuides runs a block, beyond the names that it replaces.
type guide struct {
	instead  []string          // old, new, …: what else is different here
	programs map[string]string // the scripts of the reader's programs which do more than to say that they ran
	before   string            // commands before those of the block
	goesOn   map[string]string // of the commands that do not end, by their start: what is true as soon as they work. They are ended at the end
	exits    map[string]int    // exit codes, by the start of the command; the others are 0
	after    string            // commands after those of the block
	prints   []string          // what all of them print, with "…" for the rest of a line; "" is nothing
}

// A script begins with this. "await" asks until a command succeeds, for half a minute at least.
const preamble = `on=
trap 'kill $on 2>/dev/null || :' EXIT
await() {
	tries=0
	until eval "$1" >/dev/null 2>&1; do
		tries=$((tries+1))
		[ $tries -lt 600 ] || { echo "awaited in vain: $1" >&2; exit 1; }
		sleep 0.05
	done
}
`

// epilogue ends what goes on. 143 is the end by SIGTERM.
const epilogue = `for pid in $on; do
	kill $pid || :
	wait $pid || [ $? = 143 ]
done
on=
`

// script is what runs for a block, with the names of the page.
func (g guide) script(b commandBlock, used func(string)) string {
	s := strings.Builder{}
	s.WriteString(preamble + g.before + "\n")
	for _, line := range b.lines() {
		if b.reason(cannot, line, func(string) {}) != "" {
			continue
		}
		of := func(start string) bool {
			if strings.HasPrefix(line, start) {
				used(start)
				return true
			}
			return false
		}
		wrapped := line
		for start, ready := range g.goesOn {
			if of(start) {
				wrapped = "{ exec " + line + "} &\non=\"$! $on\"\nawait " + quoted(ready) + "\n"
			}
		}
		for start, code := range g.exits {
			if of(start) {
				wrapped = fmt.Sprintf("code=0\n{ %s} || code=$?\n[ $code = %d ] || { echo \"exit code $code\" >&2; exit 1; }\n", line, code)
			}
		}
		s.WriteString(wrapped)
	}
	s.WriteString(g.after + "\n" + epilogue)
	return s.String()
}

var (
	redisURL = regexp.MustCompile(`redis://(db1|localhost|redis\.internal)(:6379)?\b`)
	pgURL    = regexp.MustCompile(`postgres://db[12]/locks\b`)
	rooted   = regexp.MustCompile(`/(run|etc|var|srv|tmp|usr/local)/[\w./-]*`)
	listens  = regexp.MustCompile(`(127\.0\.0\.1|localhost)?:(7380|7390|7420|8080)\b`)
	program  = regexp.MustCompile(`(^|[\s"'(])\./([a-z][\w.-]*)`)
)

// made is a script with real servers, free addresses, and with the folders of the machine
// in dir, which are made. So are the programs of the reader.
func (g guide) made(t *testing.T, script, dir string) string {
	t.Helper()
	for i := 0; i < len(g.instead); i += 2 {
		if !strings.Contains(script, g.instead[i]) {
			t.Fatalf("there is no %q in\n%s", g.instead[i], script)
		}
		script = strings.ReplaceAll(script, g.instead[i], g.instead[i+1])
	}
	programs := maps.Clone(g.programs)
	if programs == nil {
		programs = make(map[string]string)
	}
	for _, found := range program.FindAllStringSubmatch(script, -1) {
		if name := "./" + found[2]; programs[name] == "" {
			programs[name] = "echo \"" + name + " ran\""
		}
	}
	script = rooted.ReplaceAllStringFunc(script, func(name string) string {
		if err := os.MkdirAll(filepath.Dir(dir+name), 0o700); err != nil {
			t.Fatal(err)
		}
		return dir + name
	})
	for name, text := range programs {
		if !strings.Contains(name, "/") {
			name = "bin/" + name // found by its name
		}
		path := filepath.Join(dir, name)
		err := os.MkdirAll(filepath.Dir(path), 0o700)
		if err == nil {
			err = os.WriteFile(path, []byte("#!/bin/sh\n"+text+"\n"), 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	repo, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	script = strings.ReplaceAll(script, "REPO", repo)
	redis := sync.OnceValue(func() string { return "redis://" + testserver.Redis(t).Addr })
	script = redisURL.ReplaceAllStringFunc(script, func(string) string { return redis() })
	postgres := sync.OnceValue(func() string { s := testserver.SharedPostgres(t); return s.URL(s.Database(t)) })
	script = pgURL.ReplaceAllStringFunc(script, func(string) string { return "'" + postgres() + "'" })
	addrs := make(map[string]string)
	if strings.Contains(script, "c1,c2,c3") {
		script = strings.ReplaceAll(script, "c1,c2,c3", strings.Join(testserver.SharedRedisCluster(t).Addrs(), ","))
	}
	return here(t, listens.ReplaceAllStringFunc(script, func(name string) string {
		port := name[strings.LastIndex(name, ":"):]
		if addrs[port] == "" {
			addrs[port] = testserver.FreeAddr(t)
		}
		return addrs[port]
	}))
}

// TestGuides runs the blocks of commands that no other test runs, each in a folder of its own.
func TestGuides(t *testing.T) {
	t.Parallel()
	bin := command(t)
	// The folder of the user is another one for the commands, and what Go keeps is not.
	var goEnv map[string]string
	kept, err := exec.Command("go", "env", "-json", "GOCACHE", "GOMODCACHE").Output()
	if err == nil {
		err = json.Unmarshal(kept, &goEnv)
	}
	if err != nil {
		t.Fatal(err)
	}
	all, err := commandBlocks(os.DirFS("../.."))
	if err != nil {
		t.Fatal(err)
	}
	for name, g := range guides {
		page, start, _ := strings.Cut(name, ": ")
		for _, b := range all {
			if b.page != page || !b.starts(start) {
				continue // TestAllBlocksRun sees an entry without a block
			}
			t.Run(strings.ReplaceAll(name, "/", " "), func(t *testing.T) {
				t.Parallel()
				dir, err := os.MkdirTemp("", "page") // short: sockets are in it
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { _ = os.RemoveAll(dir) })
				used := make(map[string]bool)
				script := g.made(t, g.script(b, func(start string) { used[start] = true }), dir)
				if len(used) != len(g.goesOn)+len(g.exits) {
					t.Errorf("of the commands with an end of their own there are only %v in\n%s", used, b)
				}
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
				defer cancel()
				cmd := exec.CommandContext(ctx, testserver.Bash(t), "-euc", script)
				cmd.Dir = dir
				cmd.Env = append(os.Environ(), "PATH="+filepath.Join(dir, "bin")+":"+bin+":"+os.Getenv("PATH"),
					"GOCACHE="+goEnv["GOCACHE"], "GOMODCACHE="+goEnv["GOMODCACHE"], "HOME="+dir, "XDG_STATE_HOME="+dir, "XDG_RUNTIME_DIR="+dir, "BATON_STORE=", "BATON_LANG=en")
				cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
				cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
				cmd.WaitDelay = 5 * time.Second
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%s\n%v\n%s", script, err, out)
				}
				for _, want := range g.prints {
					if !printed(want).Match(out) {
						t.Errorf("the commands do not print %q:\n%s", want, out)
					}
				}
			})
		}
	}
}
