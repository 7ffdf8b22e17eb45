//go:build unix

package clients

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
)

// blocks returns the code of a page, by language.
func blocks(t *testing.T, page string) map[string][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	code := make(map[string][]string)
	for _, block := range pagecode.All(string(text)) {
		code[block.Language] = append(code[block.Language], block.Text)
	}
	return code
}

// The quarter of an hour of README.md.
func TestQuarterOfAnHour(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	for _, need := range []func(testserver.TB) string{testserver.Node, testserver.PHP, testserver.Bash} {
		need(t)
	}
	dir, code := folder(t), blocks(t, "README.md")
	here := func(text string) string { return strings.ReplaceAll(text, "/srv/app", dir) }
	for name, text := range map[string]string{"report.php": code["php"][0], "service.mjs": code["js"][0], "job.sh": code["bash"][0]} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(here(text)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, client := range []string{"php/baton.php", "node/baton.mjs", "bash/baton.sh"} {
		text, err := os.ReadFile(client)
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, filepath.Base(client)), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := buildBaton(); err != nil {
		t.Fatal(err)
	}
	addr := testserver.FreeAddr(t)
	start := func(line string) *exec.Cmd {
		cmd := exec.Command("sh", "-c", "exec env "+here(line))
		cmd.Env = append(os.Environ(), "PATH="+built+":"+os.Getenv("PATH"), "PORT="+addr[strings.LastIndex(addr, ":")+1:])
		cmd.Stderr = t.Output()
		return cmd
	}
	run := func(line string) {
		t.Helper()
		if out, err := start(line).Output(); err != nil {
			t.Fatalf("%s: %v\n%s", line, err, out)
		}
	}
	serve := func(line string) {
		t.Helper()
		cmd := start(line)
		if err := testserver.Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	}

	shell := code["sh"]
	_, serveAgent, _ := strings.Cut(strings.TrimSpace(shell[0]), "\n") // the first line installs the agent
	serve(serveAgent)
	for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "agent.sock")); err == nil {
			break
		} else if time.Now().After(late) {
			t.Fatal(err)
		}
	}
	run(shell[1])   // PHP
	serve(shell[2]) // Node
	for late := time.Now().Add(patience); ; time.Sleep(time.Millisecond) {
		answer, err := http.Get("http://" + addr)
		if err == nil {
			text, _ := io.ReadAll(answer.Body) // only for display
			_ = answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				t.Fatalf("Node: %s %s", answer.Status, text)
			}
			break
		} else if time.Now().After(late) {
			t.Fatal(err)
		}
	}
	job := strings.TrimSpace(strings.TrimPrefix(code["cron"][0], "*/5 * * * *"))
	run(job)

	report := func() (lines []string) {
		text, err := os.ReadFile(filepath.Join(dir, "report.txt"))
		if err != nil {
			t.Fatal(err)
		}
		return strings.Split(strings.TrimSpace(string(text)), "\n")
	}
	last := 0
	for i, line := range report() {
		name, token, _ := strings.Cut(line, " ")
		n, err := strconv.Atoi(token)
		if want := []string{"PHP", "Node", "cron"}[i]; name != want || err != nil || n <= last {
			t.Errorf("line %d of the report is %q, after the token %d", i, line, last)
		}
		last = n
	}

	// While another process has the lock, the job ends, and PHP waits.
	holder := start(strings.ReplaceAll(shell[3], "sleep 5", "cat"))
	in, err := holder.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := testserver.Start(holder); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = holder.Process.Kill(); _ = holder.Wait() })
	for late := time.Now().Add(patience); ; {
		out, err := start(`baton ls --store sqlite:/srv/app/locks.db`).Output()
		if err == nil && strings.Contains(string(out), "report") {
			break
		} else if time.Now().After(late) {
			t.Fatalf("ls: %v\n%s", err, out)
		}
	}
	if err := start(job).Run(); err == nil || err.(*exec.ExitError).ExitCode() != 75 {
		t.Errorf("the job beside a holder: %v", err)
	}
	elsewhere := start(strings.Replace(job, "agent.sock", "none.sock", 1))
	var said strings.Builder
	elsewhere.Stderr = &said
	if err := elsewhere.Run(); err == nil || !strings.HasPrefix(said.String(), "job: no agent at "+dir+"/none.sock: start baton agent") {
		t.Errorf("the job without an agent: %v, %q", err, said.String())
	}
	waits := start(shell[1])
	if err := testserver.Start(waits); err != nil {
		t.Fatal(err)
	}
	for late := time.Now().Add(patience); ; {
		out, err := start(shell[4]).Output()
		if err == nil && strings.Contains(string(out), `"waiting"`) {
			break
		} else if time.Now().After(late) {
			t.Fatalf("who: %v\n%s", err, out)
		}
	}
	_ = in.Close()
	if err := waits.Wait(); err != nil {
		t.Errorf("PHP: %v", err)
	}
	if n := len(report()); n != 4 {
		t.Errorf("the report has %d lines", n)
	}
}

// The code of each client's page runs.
func TestPages(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	s := sites[1].make(t)
	h := newHost(t, s.url)
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	run := func(name, text string, command ...string) {
		t.Helper()
		file := filepath.Join(h.dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		cmd := exec.Command(command[0], append(command[1:], file)...)
		cmd.Dir = h.dir
		cmd.Env = append(os.Environ(), "BATON_AGENT="+h.socket, "PYTHONPATH="+filepath.Join(here, "python"))
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s\n%s", name, err, out, text)
		}
	}
	for _, client := range []string{"php/baton.php", "php/baton_http.php", "node/baton.mjs", "node/baton_http.mjs", "bash/baton.sh"} {
		text, err := os.ReadFile(client)
		if err == nil {
			err = os.WriteFile(filepath.Join(h.dir, filepath.Base(client)), text, 0o600)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	h.at(language{http: true})
	code := func(page, language string) (all []string) {
		t.Helper()
		for _, text := range blocks(t, page)[language] {
			all = append(all, strings.Replace(text, "http://127.0.0.1:7420", h.urls[0], 1))
		}
		if len(all) == 0 {
			t.Errorf("%s has no code", page)
		}
		return all
	}
	for _, page := range []string{"../docs/agent.md", "python/README.md"} {
		for _, text := range code(page, "python") {
			run("page.py", "write = print\ndef pay(): pass\ndef charge(): return 'paid'\n"+text, pythonProgram(t), "-B")
		}
	}
	for _, text := range code("node/README.md", "js") {
		text = strings.NewReplacer(`"baton-agent"`, `"./baton.mjs"`, `"baton-agent/http"`, `"./baton_http.mjs"`).Replace(text)
		run("page.mjs", "const write = console.log, pay = () => {}, charge = () => 'paid';\n"+text, testserver.Node(t))
	}
	for _, text := range code("php/README.md", "php") {
		run("page.php", "<?php require_once __DIR__ . '/baton_http.php'; function write($token) {} function pay() {} function charge() { return 'paid'; }\n"+
			strings.NewReplacer("require 'baton.php';", "", "require 'baton_http.php';", "").Replace(text), testserver.PHP(t))
	}
	for _, text := range code("bash/README.md", "bash") {
		run("page.sh", "set -e\n"+strings.NewReplacer("./pay", ":", "./charge", "echo paid").Replace(text), testserver.Bash(t))
	}
	javaProgram := testserver.Java(t)
	if err := buildJava(); err != nil {
		t.Fatal(err)
	}
	for _, text := range code("java/README.md", "java") {
		run("Page.java", "import io.github.batonhq.baton.*;\nimport java.time.Duration;\nimport java.util.List;\nclass Page {\nstatic void write(long token) {}\nstatic void pay() {}\n"+
			"static String charge() { return \"paid\"; }\npublic static void main(String[] args) {\n"+text+"}\n}\n", javaProgram, "-cp", filepath.Join(built, "java"))
	}
}

// The page says for each client what it can do, and why it cannot do the rest.
func TestTableOfAbilities(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	rows := make(map[string][]string)
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|"); len(cells) == 1+len(languages) {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows[cells[0]] = cells[1:]
		}
	}
	for i, l := range languages {
		if head := rows[""]; head == nil || !strings.HasPrefix(head[i], "["+l.name+"]") {
			t.Errorf("the table has no column of %s", l.name)
		}
		for _, ability := range abilities {
			want := "yes"
			if !l.can(ability) {
				want = l.cannot[ability]
			}
			if cells := rows[ability]; cells == nil || cells[i] != want && !strings.HasPrefix(cells[i], want+":") {
				t.Errorf("%s: the table says %q to %q, want %q", l.name, cells, ability, want)
			}
		}
	}
}

// The clients stay small enough to be read before they are copied.
func TestClientsAreSmall(t *testing.T) {
	t.Parallel()
	for _, l := range languages {
		for _, name := range l.files {
			text, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			if n, most := bytes.Count(text, []byte("\n")), map[bool]int{false: 200, true: 300}[l.http]; n > most {
				t.Errorf("%s has %d lines", name, n)
			}
		}
	}
}

// The packages are built as for their registries, and work.
func TestPackagesAreBuilt(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	dir := folder(t)
	run := func(in string, command ...string) string {
		t.Helper()
		cmd := exec.Command(command[0], command[1:]...)
		cmd.Dir, cmd.Env = in, append(os.Environ(), "COMPOSER_ALLOW_SUPERUSER=1", "COMPOSER_HOME="+dir, "BATON_SERVER=http://127.0.0.1:1", "PYTHONPATH=")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v\n%s", command, err, out)
		}
		return string(out)
	}
	copied := func(name string) string { // building writes beside the sources
		t.Helper()
		to := filepath.Join(dir, name)
		if err := os.CopyFS(to, os.DirFS(name)); err != nil {
			t.Fatal(err)
		}
		return to
	}
	holds := func(list string, names ...string) {
		t.Helper()
		for _, name := range names {
			if !strings.Contains(list, name) {
				t.Errorf("there is no %s among\n%s", name, list)
			}
		}
	}

	testserver.NeedJar(t, "/usr/lib/python3/dist-packages/build", "python3-build")
	run(copied("python"), "/usr/bin/python3", "-m", "build", "--no-isolation", "--wheel", "--outdir", dir)
	wheel := filepath.Join(dir, "baton_agent-0.1.0-py3-none-any.whl")
	holds(run(dir, "/usr/bin/python3", "-m", "zipfile", "-l", wheel), "baton/__init__.py", "baton/common.py", "baton/http.py", "baton/py.typed")
	run(dir, "/usr/bin/python3", "-c", "import sys; sys.path.insert(0, '"+wheel+"'); import baton.http; assert baton.http.__file__.startswith('"+wheel+"')")

	node := copied("node")
	run(node, testserver.Npm(t), "pack", "--offline", "--pack-destination", dir)
	run(dir, "tar", "-xzf", "baton-agent-0.1.0.tgz")
	if err := os.Mkdir(filepath.Join(dir, "node_modules"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(filepath.Join(dir, "package"), filepath.Join(dir, "node_modules", "baton-agent")); err != nil {
		t.Fatal(err)
	}
	run(dir, testserver.Node(t), "--input-type=module", "--eval", "import * as agent from 'baton-agent'; import * as http from 'baton-agent/http'; "+
		"for (const name of ['lock', 'tryLock', 'withLock', 'once', 'take', 'leader']) if (!agent[name] || !http[name]) throw name")

	php, composer := copied("php"), testserver.NeedJar(t, "/usr/bin/composer", "composer")
	run(php, composer, "validate", "--strict", "--no-check-version", "--no-interaction")
	run(php, composer, "dump-autoload", "--no-interaction")
	run(php, testserver.PHP(t), "-r", "require 'vendor/autoload.php'; foreach (['lock', 'tryLock', 'withLock', 'once', 'take', 'leader'] as $name) "+
		`{ function_exists("Baton\\$name") && function_exists("Baton\\Http\\$name") || exit(1); }`)

	testserver.Java(t)
	sources, err := filepath.Glob(filepath.Join(copied("java"), strings.TrimPrefix(java, "java/"), "*.java"))
	if err != nil || len(sources) == 0 {
		t.Fatalf("%v, %v", sources, err)
	}
	run(dir, append([]string{"javac", "--release", "17", "-d", "classes"}, sources...)...)
	run(dir, append([]string{"javadoc", "-quiet", "-Xdoclint:all,-missing", "-Werror", "-d", "javadoc"}, sources...)...)
	run(dir, "jar", "--create", "--file", "baton-agent.jar", "-C", "classes", ".")
	holds(run(dir, "jar", "--list", "--file", "baton-agent.jar"), "io/github/batonhq/baton/Baton.class", "io/github/batonhq/baton/BatonHttp.class")
}

// The packages have what their registries ask for, and what they name exists.
func TestPackages(t *testing.T) {
	t.Parallel()
	type packed struct {
		Name, Version, Description, License string
		Files                               []string
		Exports                             map[string]struct{ Types, Default string }
		Autoload                            struct{ Files []string }
	}
	read := func(name string, unmarshal func([]byte, any) error, into any) {
		t.Helper()
		text, err := os.ReadFile(name)
		if err == nil {
			err = unmarshal(text, into)
		}
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
	}
	var npm, composer packed
	read("node/package.json", json.Unmarshal, &npm)
	read("php/composer.json", json.Unmarshal, &composer)
	var pom struct {
		GroupID     string `xml:"groupId"`
		Name        string `xml:"artifactId"`
		Version     string `xml:"version"`
		Description string `xml:"description"`
		License     string `xml:"licenses>license>name"`
		Developer   string `xml:"developers>developer>name"`
		SCM         string `xml:"scm>url"`
	}
	read("java/pom.xml", xml.Unmarshal, &pom)
	if pom.GroupID == "" || pom.Developer == "" || pom.SCM == "" {
		t.Errorf("pom.xml lacks something: %+v", pom)
	}
	python, err := os.ReadFile("python/pyproject.toml")
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []packed{npm, composer, {Name: pom.Name, Version: pom.Version, Description: pom.Description, License: pom.License}} {
		if !strings.HasSuffix(p.Name, "baton-agent") || p.Version != npm.Version && p.Name != composer.Name || p.License != "Apache-2.0" ||
			!bytes.Contains(python, []byte(p.Description)) || !bytes.Contains(python, []byte(`"`+npm.Version+`"`)) {
			t.Errorf("it is not as in pyproject.toml: %+v", p)
		}
	}
	for folder, names := range map[string][]string{"node": append(npm.Files, npm.Exports["."].Types, npm.Exports["."].Default), "php": composer.Autoload.Files} {
		if len(names) == 0 {
			t.Errorf("%s has no files", folder)
		}
		for _, name := range names {
			if _, err := os.Stat(filepath.Join(folder, name)); err != nil {
				t.Error(err)
			}
		}
	}
}
