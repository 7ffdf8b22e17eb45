package main

import (
	"bytes"
	"cmp"
	"compress/gzip"
	"context"
	"embed"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
)

// deb holds the scripts that dpkg runs.
//
//go:embed deb
var deb embed.FS

// debian makes the package of the command that was built as file: with its manual pages,
// its completions, and the units for systemd.
func (r *release) debian(ctx context.Context, p platform, file string) error {
	root, err := os.MkdirTemp("", "baton-deb-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(root)
	runs, clean, err := r.host(ctx, p, file)
	if err != nil {
		return err
	}
	defer clean()
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	w := &tree{root: root}
	w.write("usr/bin/baton", 0o755, text)
	manuals := filepath.Join(root, "manuals")
	if err := os.Mkdir(manuals, 0o755); err != nil {
		return err
	}
	if out, err := exec.CommandContext(ctx, runs, "man", manuals).CombinedOutput(); err != nil {
		return fmt.Errorf("baton man: %w\n%s", err, out)
	}
	pages, err := os.ReadDir(manuals)
	if err != nil {
		return err
	}
	for _, page := range pages {
		w.compress("usr/share/man/man1/"+page.Name()+".gz", filepath.Join(manuals, page.Name()))
	}
	if err := os.RemoveAll(manuals); err != nil {
		return err
	}
	for shell, to := range map[string]string{
		"bash": "usr/share/bash-completion/completions/baton",
		"zsh":  "usr/share/zsh/vendor-completions/_baton",
		"fish": "usr/share/fish/vendor_completions.d/baton.fish",
	} {
		script, err := exec.CommandContext(ctx, runs, "completion", shell).Output()
		if err != nil {
			return fmt.Errorf("baton completion %s: %w", shell, err)
		}
		w.write(to, 0o644, script)
	}
	units, err := filepath.Glob(filepath.Join(r.top, "deploy/systemd/baton-*"))
	if err != nil {
		return err
	}
	for _, unit := range units {
		text, err := os.ReadFile(unit)
		if err != nil {
			return err
		}
		// What a package installs is below /usr; /usr/local is for what people put there.
		w.write("usr/lib/systemd/system/"+filepath.Base(unit), 0o644, bytes.ReplaceAll(text, []byte("/usr/local/bin/"), []byte("/usr/bin/")))
	}
	w.copy("usr/lib/sysusers.d/baton.conf", filepath.Join(r.top, "deploy/sysusers/baton.conf"))
	w.copy("usr/share/doc/baton/copyright", filepath.Join(r.top, "LICENSE"))
	w.compress("usr/share/doc/baton/changelog.gz", filepath.Join(r.top, "CHANGELOG.md"))
	size := w.size
	control, err := deb.ReadFile("deb/control")
	if err != nil {
		return err
	}
	w.write("DEBIAN/control", 0o644, []byte(os.Expand(string(control), func(name string) string {
		return map[string]string{"VERSION": r.debianVersion(), "ARCH": p.arch, "SIZE": strconv.Itoa((size + 1023) / 1024)}[name]
	})))
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		text, err := deb.ReadFile("deb/" + script)
		if err != nil {
			return err
		}
		w.write("DEBIAN/"+script, 0o755, text)
	}
	if err := cmp.Or(w.err, w.date(r)); err != nil {
		return err
	}
	pack := "-Zxz"
	if r.quick {
		pack = "-Znone"
	}
	build := exec.CommandContext(ctx, "dpkg-deb", "--root-owner-group", "--threads-max=1", pack, "--build", root,
		filepath.Join(r.to, "baton_"+r.debianVersion()+"_"+p.arch+".deb"))
	build.Env = append(os.Environ(), "SOURCE_DATE_EPOCH="+strconv.FormatInt(r.time.Unix(), 10))
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("dpkg-deb: %w\n%s", err, out)
	}
	return nil
}

// debianVersion sorts what is before a version before it: v1.0.0-rc1 is 1.0.0~rc1.
func (r *release) debianVersion() string {
	return strings.ReplaceAll(strings.Replace(strings.TrimPrefix(r.version, "v"), "-", "~", 1), "-", ".")
}

// A tree is written file by file. After an error it writes nothing.
type tree struct {
	root string
	size int
	err  error
}

func (t *tree) write(name string, mode fs.FileMode, text []byte) {
	if t.err != nil {
		return
	}
	file := filepath.Join(t.root, name)
	t.size += len(text)
	// Not by the umask: modes are part of the package.
	t.err = cmp.Or(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, text, mode), os.Chmod(file, mode))
}

func (t *tree) copy(name, from string) {
	text, err := os.ReadFile(from)
	t.err = cmp.Or(t.err, err)
	t.write(name, 0o644, text)
}

func (t *tree) compress(name, from string) {
	text, err := os.ReadFile(from)
	var b bytes.Buffer
	z, _ := gzip.NewWriterLevel(&b, gzip.BestCompression) // without a name and a time
	_, wrote := z.Write(text)
	t.err = cmp.Or(t.err, err, wrote, z.Close())
	t.write(name, 0o644, b.Bytes())
}

// date gives all files the time of the revision, and all folders their mode.
func (t *tree) date(r *release) error {
	return filepath.WalkDir(t.root, func(file string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			err = os.Chmod(file, 0o755)
		}
		return cmp.Or(err, os.Chtimes(file, r.time, r.time))
	})
}
