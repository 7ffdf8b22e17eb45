//go:build unix

package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton/internal/clitest"
)

func TestMain(m *testing.M) {
	clitest.Main(m, map[string]func(){"baton": manned, "helper": helper})
}

// manned is baton as at a terminal, unless CRON says otherwise: most scripts wait for what
// it says, or look at that.
func manned() {
	if os.Getenv("CRON") == "" {
		attended = func(*os.File) bool { return true }
	}
	main()
}

// Each script in testdata/script is a case. Beside the commands of clitest.Scripts
// it may use
//
//	waiting N KEY   wait until N requests wait in the queue of a lock
//	lint FILE…      demand that Prometheus' own tool, if it is there, accepts these metrics
func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/script", nil)
}

func runScripts(t *testing.T, dir string, setup func(*testscript.Env) error) {
	docs, err := filepath.Abs("../../docs")
	if err != nil {
		t.Fatal(err)
	}
	clitest.Scripts(t, dir, func(env *testscript.Env) error {
		env.Setenv("DOCS", docs)
		env.Setenv("TAB", "\t")
		env.Setenv("DAY", time.Now().Format(time.DateOnly))
		env.Setenv("ESC", "\x1b[2J")
		env.Setenv("RTL", "a\u202eb")
		env.Setenv("LONG", strings.Repeat("k", 513))
		if setup != nil {
			return setup(env)
		}
		return nil
	}, map[string]func(*testscript.TestScript, bool, []string){
		"waiting": cmdWaiting, "lint": cmdLint,
		"redis": cmdRedis, "sql": cmdSQL, "freeze": cmdFreeze, "thaw": cmdThaw,
	})
}

// What other tests of this package use as well.
const patience = clitest.Patience

var (
	signals = clitest.Signals
	runs    = clitest.Runs
)

// cmdWaiting is for scripts that look at the queue: baton says "waiting" before it
// takes its position.
func cmdWaiting(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 {
		ts.Fatalf("usage: waiting N KEY")
	}
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	clitest.Eventually(ts, func() bool {
		ts.Check(ts.Exec("baton", "show", "-o", "json", args[1]))
		var shown struct{ Waiters []any }
		ts.Check(json.Unmarshal([]byte(ts.ReadFile("stdout")), &shown))
		return len(shown.Waiters) >= want
	}, func() { ts.Fatalf("no %d wait for %s", want, args[1]) })
}

func cmdLint(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) == 0 {
		ts.Fatalf("usage: lint FILE…")
	}
	tool, err := exec.LookPath("promtool")
	if err != nil {
		ts.Logf("without promtool")
		return
	}
	for _, file := range args {
		cmd := exec.Command(tool, "check", "metrics")
		cmd.Stdin = strings.NewReader(ts.ReadFile(file))
		if out, err := cmd.CombinedOutput(); err != nil {
			ts.Fatalf("promtool of %s: %v\n%s", file, err, out)
		}
	}
}
