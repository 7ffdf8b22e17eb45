package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"
)

// tree writes files below a fresh directory.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	top := t.TempDir()
	for name, text := range files {
		file := filepath.Join(top, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	return top
}

func testFile(body string, imports ...string) string {
	var b strings.Builder
	b.WriteString("package x\n\nimport (\n\t\"testing\"\n")
	for _, i := range imports {
		b.WriteString("\t\"" + i + "\"\n")
	}
	return b.String() + ")\n\n" + body
}

// run runs all tests of a tree.
func run(t *testing.T, top string, r runner) (printed string, err error) {
	t.Helper()
	r.top, r.out = top, filepath.Join(top, ".test")
	r.lanes, r.parallel, r.timeout = 2, 2, time.Minute
	var b strings.Builder
	err = r.all(t.Context(), &b)
	return b.String(), err
}

// Whatever goes wrong in one package, the others run, each failure is told when it
// happens, and the end names the command that repeats it.
func TestAllRunAndFailuresAreTold(t *testing.T) {
	t.Parallel()
	top := tree(t, map[string]string{
		"go.mod":          "module planted\n\ngo 1.26\n",
		"good/x_test.go":  testFile("func TestGood(t *testing.T) {\n\tt.Log(\"said by one that passed\")\n\tif l := os.Getenv(\"BATON_LANG\"); l != \"en\" {\n\t\tt.Error(l)\n\t}\n}", "os"),
		"bad/x_test.go":   testFile("func TestBad(t *testing.T) {\n\tt.Run(\"of two\", func(t *testing.T) { t.Error(\"said by one that failed\")\n\t\tfor range 1000 {\n\t\t\tt.Log(\"said often\")\n\t\t}\n\t\tt.Error(\"said last\")\n\t})\n\tt.Run(\"fine\", func(t *testing.T) {})\n}"),
		"panic/x_test.go": testFile("func TestPanic(t *testing.T) { panic(\"said in a panic\") }"),
		"exit/x_test.go":  testFile("func TestMain(m *testing.M) { m.Run(); os.Exit(3) }\n\nfunc TestFine(t *testing.T) {}", "os"),
		"build/x_test.go": testFile("func TestBuild(t *testing.T) { undefined() }"),
		"skip/x_test.go":  testFile("func TestSkip(t *testing.T) { t.Skip(\"why\") }"),
		"more/go.mod":     "module planted/more\n\ngo 1.26\n",
		"more/x_test.go":  testFile("func TestMore(t *testing.T) { t.Error(\"said in another module\") }"),
		"none/x.go":       "package x\n",
	})
	printed, err := run(t, top, runner{})
	if !errors.Is(err, errFailed) {
		t.Errorf("the run ended with %v, want errFailed", err)
	}
	for _, want := range []string{
		"ok   good ", "FAIL bad ", "FAIL panic ", "FAIL exit ", "FAIL build ", "ok   skip ", "FAIL more ", "7 of 7",
		"said by one that failed", "lines more in the log", "said last", "said in a panic", "undefined: undefined", "said in another module",
		"skipped:\n  skip TestSkip\n",
		"BATON_REQUIRE_SERVERS=1 go test -count=1 -race -run '^TestBad$/^of_two$' ./bad\n",
		"BATON_REQUIRE_SERVERS=1 go test -C more -count=1 -race -run '^TestMore$' .\n",
		"go test -count=1 -race ./build\n", "go test -count=1 -race ./exit\n",
		"\n3 passed, 5 failed, 1 skipped\n",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("it did not print %q", want)
		}
	}
	if n := strings.Count(printed, "said often"); n > maxLines {
		t.Errorf("it printed %d lines of a test that printed a thousand", n)
	}
	for _, not := range []string{"said by one that passed", "none"} {
		if strings.Contains(printed, not) {
			t.Errorf("it printed %q", not)
		}
	}
	if t.Failed() {
		t.Log(printed)
	}
}

// Every test of a package that is split is run exactly once.
func TestSplit(t *testing.T) {
	t.Parallel()
	top := tree(t, map[string]string{
		"go.mod": "module planted\n\ngo 1.26\n",
		"store/pgstore/x_test.go": testFile(`func TestBeside(t *testing.T) { t.Parallel() }

func TestBesideMore(t *testing.T) {
	t.Parallel()
	t.Run("below", func(t *testing.T) {})
}

func TestAlone(t *testing.T) {}

func TestInnerOnly(t *testing.T) { t.Run("below", func(t *testing.T) { t.Parallel() }) }

func Example() {
	fmt.Println("x")
	// Output: x
}`, "fmt"),
	})
	printed, err := run(t, top, runner{})
	if err != nil || !strings.Contains(printed, "store/pgstore (parallel)") || !strings.Contains(printed, "store/pgstore (one by one)") {
		t.Errorf("%v\n%s", err, printed)
	}
	all, err := readResults(filepath.Join(top, ".test", "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, r := range all {
		names = append(names, r.Test)
	}
	want := []string{"Example", "TestAlone", "TestBeside", "TestBesideMore", "TestBesideMore/below", "TestInnerOnly", "TestInnerOnly/below"}
	if !slices.Equal(names, want) {
		t.Errorf("ran %v, want %v", names, want)
	}
}

// Those that wait take no lane from those that work: two of these, on the only lane,
// end while the first still runs.
func TestThoseThatWait(t *testing.T) {
	t.Parallel()
	top := tree(t, map[string]string{
		"go.mod": "module planted\n\ngo 1.26\n",
		"internal/verify/soak/x_test.go": testFile(`func TestWaits(t *testing.T) {
	for end := time.Now().Add(50 * time.Second); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
		if _, err := os.Stat("../../../second/done"); err == nil {
			return
		}
	}
	t.Error("nobody else has run")
}`, "os", "time"),
		"first/x_test.go": testFile("func TestFirst(t *testing.T) {}"),
		"second/x_test.go": testFile(`func TestSecond(t *testing.T) {
	if err := os.WriteFile("done", nil, 0o666); err != nil {
		t.Fatal(err)
	}
}`, "os"),
	})
	r := runner{top: top, out: filepath.Join(top, ".test"), lanes: 1, parallel: 1, timeout: time.Minute}
	var b strings.Builder
	if err := r.all(t.Context(), &b); err != nil {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// A program that leaves a child behind, which keeps its output open, has ended
// all the same; one that hangs is ended, and what it was at is told.
func TestProgramsThatDoNotEnd(t *testing.T) {
	t.Parallel()
	top := tree(t, map[string]string{
		"go.mod": "module planted\n\ngo 1.26\n",
		"child/x_test.go": testFile(`func TestChild(t *testing.T) {
	c := exec.Command("sleep", "40")
	c.Stdout, c.Stderr = os.Stdout, os.Stderr
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
}`, "os", "os/exec"),
		"hang/x_test.go": testFile("func TestHang(t *testing.T) { select {} }"),
	})
	began := time.Now()
	r := runner{top: top, out: filepath.Join(top, ".test"), lanes: 2, parallel: 1, timeout: 5 * time.Second}
	var b strings.Builder
	err := r.all(t.Context(), &b)
	if took := time.Since(began); took > 35*time.Second {
		t.Errorf("it took %v", took)
	}
	if printed := b.String(); !errors.Is(err, errFailed) || !strings.Contains(printed, "ok   child") ||
		!strings.Contains(printed, "FAIL hang") || !strings.Contains(printed, "TestHang (5s)") {
		t.Errorf("%v\n%s", err, printed)
	}
}

func TestInterrupted(t *testing.T) {
	t.Parallel()
	top := tree(t, map[string]string{
		"go.mod":         "module planted\n\ngo 1.26\n",
		"wait/x_test.go": testFile("func TestWait(t *testing.T) {\n\tif err := os.WriteFile(\"../started\", nil, 0o666); err != nil {\n\t\tt.Fatal(err)\n\t}\n\tselect {}\n}", "os"),
	})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		defer cancel()
		for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
			if _, err := os.Stat(filepath.Join(top, "started")); err == nil {
				return
			}
		}
	}()
	r := runner{top: top, out: filepath.Join(top, ".test"), lanes: 1, parallel: 1, timeout: 10 * time.Minute}
	var b strings.Builder
	if err := r.all(ctx, &b); !errors.Is(err, context.Canceled) {
		t.Errorf("%v\n%s", err, b.String())
	}
}

// Under nohup HUP is ignored, and tests that send it have to find it as usual.
func TestHangUpIsNotIgnoredByTests(t *testing.T) {
	t.Parallel()
	if runtime.GOOS == "windows" {
		t.Skip("it takes signals")
	}
	top := tree(t, map[string]string{
		"go.mod": "module planted\n\ngo 1.26\n",
		"x_test.go": testFile(`func TestHup(t *testing.T) {
	if signal.Ignored(syscall.SIGHUP) {
		t.Error("HUP is ignored")
	}
}`, "os/signal", "syscall"),
	})
	program := filepath.Join(t.TempDir(), "testrun")
	if out, err := exec.Command("go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	cmd := exec.Command("sh", "-c", `trap "" HUP; exec "$0"`, program)
	cmd.Dir = top
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "1 passed, 0 failed") {
		t.Errorf("%v\n%s", err, out)
	}
}

func TestPatterns(t *testing.T) {
	t.Parallel()
	top := tree(t, map[string]string{
		"go.mod":          "module planted\n\ngo 1.26\n",
		"a/x_test.go":     testFile("func TestA(t *testing.T) {}"),
		"a/b/x_test.go":   testFile("func TestB(t *testing.T) {}\n\nfunc TestOther(t *testing.T) {}"),
		"ab/x_test.go":    testFile("func TestAB(t *testing.T) {}"),
		"m/go.mod":        "module planted/m\n\ngo 1.26\n",
		"m/c/x_test.go":   testFile("func TestC(t *testing.T) {}"),
		"tools/go.mod":    "module tools\n\ngo 1.26\n",
		"tools/x_test.go": testFile("func TestTools(t *testing.T) {}"),
	})
	for _, c := range []struct {
		patterns []string
		run      string
		want     string
	}{
		{nil, "", "TestA TestAB TestB TestC TestOther"},
		{[]string{"./a"}, "", "TestA"},
		{[]string{"./a/..."}, "", "TestA TestB TestOther"},
		{[]string{"./..."}, "Test(B|C)$", "TestB TestC"},
		{[]string{"./m/...", "./ab"}, "", "TestAB TestC"},
	} {
		if printed, err := run(t, top, runner{patterns: c.patterns, run: c.run}); err != nil {
			t.Fatalf("%v: %v\n%s", c.patterns, err, printed)
		}
		all, err := readResults(filepath.Join(top, ".test", "results.jsonl"))
		if err != nil {
			t.Fatal(err)
		}
		var names []string
		for _, r := range all {
			names = append(names, r.Test)
		}
		slices.Sort(names)
		if got := strings.Join(names, " "); got != c.want {
			t.Errorf("%v -run %q ran %s, want %s", c.patterns, c.run, got, c.want)
		}
	}
	if _, err := run(t, top, runner{patterns: []string{"./nowhere"}}); err == nil || !strings.Contains(err.Error(), "./nowhere") {
		t.Errorf("a package that does not exist: %v", err)
	}
}

func TestInventory(t *testing.T) {
	t.Parallel()
	write := func(all ...result) string {
		var b strings.Builder
		for _, r := range all {
			if err := json.NewEncoder(&b).Encode(r); err != nil {
				t.Fatal(err)
			}
		}
		file := filepath.Join(t.TempDir(), "results.jsonl")
		if err := os.WriteFile(file, []byte(b.String()), 0o666); err != nil {
			t.Fatal(err)
		}
		return file
	}
	passed := func(pkg, test string) result { return result{Package: pkg, Test: test, Status: "pass"} }
	before := []result{
		passed("store/a", "TestContract"), passed("store/a", "TestContract/waits"), passed("store/a", "TestContract/waits/in order"),
		passed("store/b", "TestContract"), passed("store/b", "TestContract/waits"), passed("store/b", "TestContract/waits/in order"),
		passed("faults", "TestKilled"), passed("faults", "TestKilled/a"), passed("faults", "TestKilled/b"), passed(".", "TestPlain"),
	}
	var b strings.Builder
	if err := printInventory(&b, write(before...), ""); err != nil {
		t.Fatal(err)
	}
	want := "waits/in order: store/a TestContract, store/b TestContract\n\n. TestPlain\nfaults TestKilled: a, b\n"
	if b.String() != want {
		t.Errorf("printed\n%s\nwant\n%s", b.String(), want)
	}

	after := slices.Clone(before)
	after[5].Status = "skip" // what is skipped is lost
	after = append(after, passed(".", "TestMore"))
	b.Reset()
	err := printInventory(&b, write(after...), write(before...))
	want = "+ . TestMore\n- store/b TestContract/waits/in order\n5 tests before, 5 now: 1 new, 1 lost\n"
	if !errors.Is(err, errFailed) || b.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, b.String(), want)
	}
	b.Reset()
	if err := printInventory(&b, write(before...), write(before...)); err != nil {
		t.Errorf("of the same run: %v\n%s", err, b.String())
	}
}

// A test that fails beside others and passes alone is no failure, and is told. No
// second run excuses a data race, a panic, an exit, or a test that fails again.
func TestOnceMoreAlone(t *testing.T) {
	t.Parallel()
	first := `
// first is true in the first run of the test program.
func first(t *testing.T) bool {
	f, err := os.OpenFile("ran-"+strings.ReplaceAll(t.Name(), "/", "-"), os.O_CREATE|os.O_EXCL, 0o666)
	if err == nil {
		f.Close()
	}
	return err == nil
}
`
	files := map[string]string{
		"go.mod": "module planted\n\ngo 1.26\n",
		"late/x_test.go": testFile(first+`
func TestLate(t *testing.T) {
	t.Run("a case", func(t *testing.T) {
		if first(t) {
			t.Error("too late")
		}
	})
	t.Run("fine", func(t *testing.T) {})
	t.Run("beside", func(t *testing.T) {
		if first(t) {
			t.Error("too late as well")
		}
	})
}

func TestFine(t *testing.T) {}
`, "os", "strings"),
		"above/x_test.go": testFile(first+`
func TestAbove(t *testing.T) {
	t.Run("below", func(t *testing.T) {
		if first(t) {
			t.Error("too late")
		}
	})
	t.Error("wrong each time")
}
`, "os", "strings"),
		"race/x_test.go": testFile(first+`
func TestRace(t *testing.T) {
	if !first(t) {
		return
	}
	n, done := 0, make(chan bool)
	go func() { n++; close(done) }()
	n++
	<-done
}
`, "os", "strings"),
		"panic/x_test.go": testFile(first+`
func TestPanic(t *testing.T) {
	if first(t) {
		panic("once")
	}
}
`, "os", "strings"),
		"exit/x_test.go": testFile(first+`
func TestExit(t *testing.T) {
	if first(t) {
		os.Exit(1)
	}
}
`, "os", "strings"),
		"left/x_test.go": testFile(first+`
func TestLeft(t *testing.T) {
	var left []string
	t.Run("a case", func(t *testing.T) {
		if first(t) {
			t.Error("too late")
		}
	})
	t.Run("dirty", func(t *testing.T) { left = append(left, "a lock") })
	if len(left) > 0 {
		t.Errorf("left behind each time: %v", left)
	}
}
`, "os", "strings"),
		"wrong/x_test.go": testFile(`
func TestWrong(t *testing.T) { t.Error("wrong each time") }
`),
	}
	printed, err := run(t, tree(t, files), runner{again: 10})
	if !errors.Is(err, errFailed) {
		t.Errorf("the run ended with %v, want errFailed", err)
	}
	for _, want := range []string{
		"once more, alone: 5 tests that failed beside others\n",
		"ok   late (TestLate/a_case)", "ok   late (TestLate/beside)", "FAIL above (TestAbove)", "FAIL left (TestLeft)", "FAIL wrong (TestWrong)",
		"failed beside others, and passed alone:\n  late TestLate/a_case\n  late TestLate/beside\n\n",
		"'^TestAbove$' ./above\n", "'^TestRace$' ./race\n", "-race ./panic\n", "-race ./exit\n", "'^TestWrong$' ./wrong\n",
		"\n5 passed, 6 failed, 0 skipped\n",
	} {
		if !strings.Contains(printed, want) {
			t.Errorf("it did not print %q", want)
		}
	}
	if t.Failed() {
		t.Log(printed)
	}

	files = map[string]string{"go.mod": files["go.mod"], "late/x_test.go": files["late/x_test.go"]}
	top := tree(t, files)
	if printed, err := run(t, top, runner{again: 1}); !errors.Is(err, errFailed) || !strings.Contains(printed, "2 tests failed: too many") {
		t.Errorf("more failures than are repeated: %v\n%s", err, printed)
	}
	top = tree(t, files)
	if printed, err := run(t, top, runner{again: 2}); err != nil {
		t.Errorf("all passed alone: %v\n%s", err, printed)
	}
	all, err := readResults(filepath.Join(top, ".test", "results.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	alone := slices.DeleteFunc(all, func(r result) bool { return !r.Alone || r.Status != "pass" })
	if len(alone) != 3 { // with the test above the two
		t.Errorf("the results have %v", alone)
	}
}

// What the flags leave open is set, and what they say is kept.
func TestPace(t *testing.T) {
	t.Parallel()
	takes := startOfProgram(t.Context())
	if takes <= 0 || takes > 10*time.Second {
		t.Errorf("a program takes %v", takes)
	}
	var open runner
	open.setPace(t.Context(), io.Discard)
	if open.parallel < 1 || open.timeout < time.Minute {
		t.Errorf("nothing was chosen: %d at once, %v", open.parallel, open.timeout)
	}
	set := runner{parallel: 7, timeout: time.Second}
	set.setPace(t.Context(), io.Discard)
	if set.parallel != 7 || set.timeout != time.Second {
		t.Errorf("flags were not kept: %d at once, %v", set.parallel, set.timeout)
	}
}
