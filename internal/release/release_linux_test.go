package main

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

var (
	all   = flag.Bool("all", false, "build for all platforms twice: many minutes at the first time")
	clean = flag.String("clean", "", "the `mirror` from which a clean Debian is made to install the package into")
)

// TestReproducible builds two copies of the tree, in folders of different names and at
// different times, and compares all bytes.
func TestReproducible(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	first, second := copied(t), copied(t) // before somebody goes on with the tree
	one, two := build(t, first), build(t, second)
	names := files(t, one)
	if other := files(t, two); !slices.Equal(names, other) || len(names) < 3 {
		t.Fatalf("the files are %q and %q", names, other)
	}
	for _, name := range names {
		if a, b := read(t, filepath.Join(one, name)), read(t, filepath.Join(two, name)); !bytes.Equal(a, b) {
			t.Errorf("%s differs between two builds", name)
		}
	}
	checkSums(t, one)
	// What has html/template, or calls methods by names that it finds while it runs, makes the
	// linker keep all methods: "go build -ldflags=-dumpdep" shows <ReflectMethod> then.
	if size := len(read(t, filepath.Join(one, "baton_"+testVersion+"_linux_"+runtime.GOARCH))); size > 36<<20 {
		t.Errorf("the command has %d bytes", size)
	}
	for _, name := range names {
		if strings.HasSuffix(name, ".deb") {
			t.Run(name, func(t *testing.T) { testPackage(t, filepath.Join(one, name)) })
		}
	}
	t.Run("empty root", func(t *testing.T) {
		testEmptyRoot(t, filepath.Join(one, "baton_"+testVersion+"_linux_"+runtime.GOARCH))
	})
}

const testVersion = "v0.99.0-rc1"

// copied makes a copy of the tree that has no history.
func copied(t *testing.T) string {
	t.Helper()
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(t.TempDir(), "tree")
	if err := copyTree(top, tree); err != nil {
		t.Fatal(err)
	}
	return tree
}

// build makes a release of a tree.
func build(t *testing.T, tree string) string {
	t.Helper()
	r := release{top: tree, to: t.TempDir(), version: testVersion, revision: strings.Repeat("0123", 10), quick: !*all, time: time.Unix(1_800_000_000, 0)}
	for _, p := range platforms {
		if !*all && p != here {
			continue
		}
		file, err := r.build(t.Context(), p)
		if err == nil && p.os == "linux" {
			err = r.debian(t.Context(), p, file)
		}
		if err != nil {
			t.Fatalf("%v: %v", p, err)
		}
	}
	if err := r.sums(); err != nil {
		t.Fatal(err)
	}
	return r.to
}

func copyTree(from, to string) error {
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, file)
		switch {
		case err != nil:
			return err
		case d.IsDir() && name != "." && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin" || d.Name() == "dist"):
			return fs.SkipDir
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o777)
		case !d.Type().IsRegular():
			return nil
		}
		text, err := os.ReadFile(file)
		return cmp.Or(err, os.WriteFile(filepath.Join(to, name), text, 0o666))
	})
}

func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	found, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range found {
		names = append(names, f.Name())
	}
	return names
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func checkSums(t *testing.T, dir string) {
	t.Helper()
	sums := make(map[string]string)
	for line := range strings.Lines(string(read(t, filepath.Join(dir, "SHA256SUMS")))) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		sums[name] = sum
	}
	for _, name := range files(t, dir) {
		if sum := sha256.Sum256(read(t, filepath.Join(dir, name))); name != "SHA256SUMS" && sums[name] != hex.EncodeToString(sum[:]) {
			t.Errorf("SHA256SUMS has %q for %s", sums[name], name)
		}
	}
}

// testPackage installs a package into a folder, uses it, and removes it.
func testPackage(t *testing.T, file string) {
	if os.Geteuid() != 0 {
		t.Skip("only root installs packages")
	}
	root := t.TempDir()
	dpkg := func(args ...string) {
		t.Helper()
		// The folder has no programs that could run the scripts in it.
		cmd := exec.CommandContext(t.Context(), "dpkg", append([]string{"--root=" + root, "--force-script-chrootless", "--force-architecture"}, args...)...)
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("dpkg %q: %v\n%s", args, err, out)
		}
	}
	for _, dir := range []string{"var/lib/dpkg/info", "var/lib/dpkg/updates"} {
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, name := range []string{"var/lib/dpkg/status", "var/lib/dpkg/available"} {
		if err := os.WriteFile(filepath.Join(root, name), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	began := time.Now()
	dpkg("--install", file)
	for _, name := range []string{
		"usr/bin/baton", "usr/share/man/man1/baton.1.gz", "usr/share/man/man1/baton-run.1.gz", "usr/share/man/man1/baton-limit-check.1.gz", "usr/share/man/man1/baton-stores.1.gz",
		"usr/share/bash-completion/completions/baton", "usr/share/zsh/vendor-completions/_baton", "usr/share/fish/vendor_completions.d/baton.fish",
		"usr/lib/systemd/system/baton-agent.service", "usr/lib/systemd/system/baton-agent.socket", "usr/lib/systemd/system/baton-serve.service",
		"usr/lib/sysusers.d/baton.conf",
		"usr/share/doc/baton/copyright", "usr/share/doc/baton/changelog.gz",
	} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if unit := read(t, filepath.Join(root, "usr/lib/systemd/system/baton-agent.service")); !strings.Contains(string(unit), "ExecStart=/usr/bin/baton agent") {
		t.Errorf("the unit does not run the command of the package:\n%s", unit)
	}
	if strings.HasSuffix(file, "_"+runtime.GOARCH+".deb") {
		data := filepath.Join(root, "locks.db")
		baton := filepath.Join(root, "usr/bin/baton")
		out, err := exec.CommandContext(t.Context(), baton, "-b", "sqlite://"+data, "run", "k", "--", baton, "version").Output()
		if err != nil || !strings.HasPrefix(string(out), "baton "+testVersion+" (012301230123) ") {
			t.Errorf("baton run: %v\n%s", err, out)
		}
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("installing and the first run took %v", took)
		}
		dpkg("--remove", "baton")
		if _, err := os.Stat(data); err != nil {
			t.Errorf("removing the package removed data: %v", err)
		}
	} else {
		dpkg("--remove", "baton")
	}
	err := filepath.WalkDir(root, func(file string, d fs.DirEntry, err error) error {
		name, _ := filepath.Rel(root, file)
		switch {
		case err != nil:
			return err
		case name == "var":
			return fs.SkipDir // what dpkg itself keeps
		case strings.HasPrefix(name, "locks.db") || name == ".":
		case d.IsDir() && name == "usr":
		default:
			t.Errorf("%s is left after removing the package", name)
		}
		return nil
	})
	if err != nil {
		t.Error(err)
	}
}

// inRoot runs a program that sees nothing but a folder.
func inRoot(t *testing.T, root string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), args[0], args[1:]...)
	cmd.Path, cmd.Err = args[0], nil // which is in that folder
	cmd.Dir, cmd.Env = "/", []string{"HOME=/", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: root}
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// testEmptyRoot runs the command where there is nothing else, as in a container that is
// made of it alone.
func testEmptyRoot(t *testing.T, file string) {
	if os.Geteuid() != 0 {
		t.Skip("only root changes the root")
	}
	root := t.TempDir()
	if err := os.WriteFile(filepath.Join(root, "baton"), read(t, file), 0o755); err != nil {
		t.Fatal(err)
	}
	out, err := inRoot(t, root, "/baton", "-b", "memory:", "run", "-q", "k", "--", "/baton", "version", "-o", "json")
	if err != nil || !strings.Contains(out, testVersion) {
		t.Errorf("in an empty root: %v\n%s", err, out)
	}
}

// TestCleanDebian installs the package on a Debian that was made for it.
func TestCleanDebian(t *testing.T) {
	testserver.Long(t)
	if *clean == "" {
		t.Skip("it downloads a Debian: go test ./internal/release -run Clean -clean MIRROR, with the address of one")
	}
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "debootstrap", "--variant=minbase", "--include=systemd-standalone-sysusers", "bookworm", root, *clean).CombinedOutput(); err != nil {
		t.Fatalf("debootstrap: %v\n%s", err, out)
	}
	proc := filepath.Join(root, "proc") // SQLite asks it which boot this is
	if err := syscall.Mount("proc", proc, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(proc, 0) })
	dir := build(t, copied(t))
	name := "baton_" + (&release{version: testVersion}).debianVersion() + "_" + runtime.GOARCH + ".deb"
	if err := os.WriteFile(filepath.Join(root, name), read(t, filepath.Join(dir, name)), 0o644); err != nil {
		t.Fatal(err)
	}
	list := func() (names []string) {
		_ = filepath.WalkDir(root, func(file string, _ fs.DirEntry, _ error) error {
			if file == proc {
				return fs.SkipDir
			}
			if name, _ := filepath.Rel(root, file); !strings.HasPrefix(name, "var/l") && !strings.HasPrefix(name, "root/") {
				names = append(names, name)
			}
			return nil
		})
		return names
	}
	before := list()
	began := time.Now()
	for _, args := range [][]string{{"/usr/bin/dpkg", "--install", "/" + name}, {"/usr/bin/baton", "run", "k", "--", "/bin/true"}} {
		if out, err := inRoot(t, root, args...); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	took := time.Since(began)
	t.Logf("installing and the first run took %v", took)
	for _, unit := range []string{"baton-agent.service", "baton-serve.service"} {
		_, user, _ := strings.Cut(string(read(t, filepath.Join(root, "usr/lib/systemd/system", unit))), "\nUser=")
		user, _, _ = strings.Cut(user, "\n")
		if out, err := inRoot(t, root, "/usr/bin/id", user); err != nil {
			t.Errorf("the user of %s: %v\n%s", unit, err, out)
		}
	}
	if took > 30*time.Second {
		t.Errorf("installing and the first run took %v", took)
	}
	if out, err := inRoot(t, root, "/usr/bin/dpkg", "--remove", "baton"); err != nil {
		t.Fatalf("dpkg --remove: %v\n%s", err, out)
	}
	// The user stays, as Debian's policy advises: files may belong to it.
	kept := []string{"etc/passwd-", "etc/group-", "etc/shadow-", "etc/gshadow-"}
	for _, name := range list() {
		if !slices.Contains(before, name) && !slices.Contains(kept, name) && !strings.HasPrefix(name, ".local") {
			t.Errorf("%s is left after removing the package", name)
		}
	}
}

// TestContainerfile sees that the image has nothing but the command and what TLS needs.
func TestContainerfile(t *testing.T) {
	t.Parallel()
	text := string(read(t, "../../Containerfile"))
	_, last, ok := strings.Cut(text, "\nFROM scratch\n")
	if !ok || strings.Contains(last, "FROM ") || strings.Contains(last, "RUN ") || !strings.Contains(last, "ENTRYPOINT [\"/baton\"]") {
		t.Errorf("the last stage is not made of the command alone:\n%s", last)
	}
	if !strings.Contains(text, "./internal/release -only linux/") {
		t.Error("the command of the image is not that of the release")
	}
}

func TestDebianVersion(t *testing.T) {
	t.Parallel()
	for version, want := range map[string]string{"v1.2.3": "1.2.3", "v1.0.0-rc1": "1.0.0~rc1", "v0.1.0-4-g0123-dirty": "0.1.0~4.g0123.dirty"} {
		if got := (&release{version: version}).debianVersion(); got != want {
			t.Errorf("%s is %s, want %s", version, got, want)
		}
	}
}
