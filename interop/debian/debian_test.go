//go:build linux

// Package debian installs what make release has built, as dpkg does on Debian, uses it and
// removes it.
package debian

import (
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

var mirror = flag.String("mirror", "", "from which a clean Debian is made to install the package into")

// built is the package for this machine that make release has left.
func built(t *testing.T) string {
	t.Helper()
	testserver.Long(t)
	found, err := filepath.Glob("../../dist/*_" + runtime.GOARCH + ".deb")
	if err != nil || len(found) != 1 {
		t.Skipf("dist has %d packages for this machine: make release tries them", len(found))
	}
	if os.Geteuid() != 0 {
		t.Skip("only root installs packages")
	}
	return found[0]
}

func read(t *testing.T, file string) string {
	t.Helper()
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestPackage installs the package into an empty folder, runs the command, and removes it.
func TestPackage(t *testing.T) {
	t.Parallel()
	file, root := built(t), t.TempDir()
	dpkg := func(args ...string) {
		t.Helper()
		// The folder has no programs that could run the scripts in it.
		cmd := exec.CommandContext(t.Context(), "dpkg", append([]string{"--root=" + root, "--force-script-chrootless"}, args...)...)
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
	dpkg("--install", file)
	for _, name := range []string{
		"usr/share/man/man1/baton.1.gz", "usr/share/man/man1/baton-run.1.gz", "usr/share/man/man1/baton-stores.1.gz",
		"usr/share/bash-completion/completions/baton", "usr/share/zsh/vendor-completions/_baton", "usr/share/fish/vendor_completions.d/baton.fish",
		"usr/lib/systemd/system/baton-agent.socket", "usr/lib/systemd/system/baton-serve.service", "usr/lib/sysusers.d/baton.conf",
		"usr/share/doc/baton/copyright", "usr/share/doc/baton/changelog.gz",
	} {
		if info, err := os.Stat(filepath.Join(root, name)); err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
	if unit := read(t, filepath.Join(root, "usr/lib/systemd/system/baton-agent.service")); !strings.Contains(unit, "ExecStart=/usr/bin/baton agent") {
		t.Errorf("the unit does not run the command of the package:\n%s", unit)
	}
	data, baton := filepath.Join(root, "locks.db"), filepath.Join(root, "usr/bin/baton")
	out, err := exec.CommandContext(t.Context(), baton, "-b", "sqlite://"+data, "run", "k", "--", baton, "version").Output()
	if err != nil || !strings.HasPrefix(string(out), "baton v") {
		t.Errorf("baton run: %v\n%s", err, out)
	}
	// The command needs nothing beside it.
	if out, err := inRoot(t, root, "/usr/bin/baton", "-b", "memory:", "run", "-q", "k", "--", "/usr/bin/baton", "version"); err != nil {
		t.Errorf("in an empty root: %v\n%s", err, out)
	}
	dpkg("--remove", "baton")
	left, err := filepath.Glob(filepath.Join(root, "*", "*"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range left {
		if name, _ := filepath.Rel(root, name); name != "var/lib" && !strings.HasPrefix(name, "locks.db") {
			t.Errorf("%s is left after removing the package", name)
		}
	}
	if _, err := os.Stat(data); err != nil {
		t.Errorf("removing the package removed data: %v", err)
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

// TestCleanDebian installs the package on a Debian that was made for it, where its scripts run.
func TestCleanDebian(t *testing.T) {
	file := built(t)
	if *mirror == "" {
		t.Skip("it downloads a Debian: -mirror has the address of one")
	}
	root := t.TempDir()
	if out, err := exec.CommandContext(t.Context(), "debootstrap", "--variant=minbase", "--include=systemd-standalone-sysusers", "bookworm", root, *mirror).CombinedOutput(); err != nil {
		t.Fatalf("debootstrap: %v\n%s", err, out)
	}
	proc := filepath.Join(root, "proc") // SQLite asks it which boot this is
	if err := syscall.Mount("proc", proc, "proc", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = syscall.Unmount(proc, 0) })
	if err := os.WriteFile(filepath.Join(root, "baton.deb"), []byte(read(t, file)), 0o644); err != nil {
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
	for _, args := range [][]string{{"/usr/bin/dpkg", "--install", "/baton.deb"}, {"/usr/bin/baton", "run", "k", "--", "/bin/true"}} {
		if out, err := inRoot(t, root, args...); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("installing and the first run took %v", took)
	}
	for _, unit := range []string{"baton-agent.service", "baton-serve.service"} {
		_, user, _ := strings.Cut(read(t, filepath.Join(root, "usr/lib/systemd/system", unit)), "\nUser=")
		user, _, _ = strings.Cut(user, "\n")
		if out, err := inRoot(t, root, "/usr/bin/id", user); err != nil {
			t.Errorf("the user of %s: %v\n%s", unit, err, out)
		}
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
