package modtest

import (
	"archive/zip"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// ofTree is the version under which a module of the working tree is fetched. It is
// none that anybody requires.
const ofTree = "v0.999999.0-tree"

// A module of a tree.
type module struct {
	folder   string // from the top: "adapters/cron", "." at the top
	path     string
	requires []requirement
	replaces bool // its go.mod replaces or excludes, which does not travel with it
}

type requirement struct{ Path, Version string }

// A tree holds modules that may require each other.
type tree struct {
	top     string
	modules []module
}

// readTree finds the modules below top.
func readTree(ctx context.Context, top string) (tree, error) {
	found := tree{top: top}
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && p != top && (left(d.Name()) || d.Name() == "testdata"):
			return fs.SkipDir
		case d.Name() != "go.mod":
			return nil
		}
		edit := exec.CommandContext(ctx, "go", "mod", "edit", "-json")
		edit.Dir = filepath.Dir(p)
		text, err := edit.Output()
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		var file struct {
			Module           struct{ Path string }
			Require          []requirement
			Replace, Exclude []any
		}
		if err := json.Unmarshal(text, &file); err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		folder, err := filepath.Rel(top, edit.Dir)
		found.modules = append(found.modules, module{
			folder:   filepath.ToSlash(folder),
			path:     file.Module.Path,
			requires: file.Require,
			replaces: len(file.Replace)+len(file.Exclude) > 0,
		})
		return err
	})
	return found, err
}

// left reports whether a folder of that name is in no version of a module.
func left(name string) bool {
	return strings.HasPrefix(name, ".") || name == "vendor" || name == "bin" || name == "dist"
}

// module returns the module with that path.
func (t tree) module(path string) (m module, ok bool) {
	i := slices.IndexFunc(t.modules, func(m module) bool { return m.path == path })
	if i < 0 {
		return module{}, false
	}
	return t.modules[i], true
}

// tag is the tag of a version of a module, as the go command expects it.
func (m module) tag(version string) string { return path.Join(m.folder, version) }

// files returns a version of a module: of its tag, or of the working tree if there is
// no such tag: a version that is required and not yet tagged is the next to be released.
func (t tree) files(ctx context.Context, m module, version string) (fs.FS, error) {
	tag := "refs/tags/" + m.tag(version)
	if version == ofTree || exec.CommandContext(ctx, "git", "-C", t.top, "rev-parse", "--quiet", "--verify", tag).Run() != nil {
		return os.DirFS(filepath.Join(t.top, m.folder)), nil
	}
	if m.folder != "." {
		tag += ":" + m.folder
	}
	text, err := exec.CommandContext(ctx, "git", "-C", t.top, "archive", "--format=zip", tag).Output()
	if err != nil {
		return nil, fmt.Errorf("git archive %s: %w", tag, err)
	}
	return zip.NewReader(bytes.NewReader(text), int64(len(text)))
}

// proxy writes a folder that the go command takes for a proxy: it has each module as
// it is in the tree, and each version of one that another requires.
func (t tree) proxy(ctx context.Context, folder string) error {
	versions := make(map[requirement]bool)
	for _, m := range t.modules {
		versions[requirement{m.path, ofTree}] = true
		for _, r := range m.requires {
			if _, ok := t.module(r.Path); ok && !m.replaces {
				versions[r] = true
			}
		}
	}
	for v := range versions {
		m, _ := t.module(v.Path)
		files, err := t.files(ctx, m, v.Version)
		if err == nil {
			err = publish(filepath.Join(folder, filepath.FromSlash(v.Path), "@v"), v, files)
		}
		if err != nil {
			return fmt.Errorf("%s@%s: %w", v.Path, v.Version, err)
		}
	}
	return nil
}

// publish writes the files that a proxy serves for one version. See "GOPROXY protocol"
// in the reference of Go modules. Paths need no escape: none of ours has a capital.
func publish(folder string, v requirement, files fs.FS) error {
	goMod, err := fs.ReadFile(files, "go.mod")
	if err != nil {
		return err
	}
	var b bytes.Buffer
	packed := zip.NewWriter(&b)
	err = fs.WalkDir(files, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			_, err := fs.Stat(files, path.Join(name, "go.mod"))
			if name != "." && (err == nil || left(d.Name())) {
				return fs.SkipDir
			}
			return nil
		}
		if !d.Type().IsRegular() {
			return nil
		}
		to, err := packed.Create(v.Path + "@" + v.Version + "/" + name)
		if err != nil {
			return err
		}
		from, err := files.Open(name)
		if err != nil {
			return err
		}
		defer from.Close()
		_, err = io.Copy(to, from)
		return err
	})
	if err := cmp.Or(err, packed.Close(), os.MkdirAll(folder, 0o777)); err != nil {
		return err
	}
	list, err := os.OpenFile(filepath.Join(folder, "list"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o666)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintln(list, v.Version)
	info := fmt.Appendf(nil, `{"Version":%q,"Time":%q}`, v.Version, time.Unix(0, 0).UTC().Format(time.RFC3339))
	return cmp.Or(err, list.Close(),
		os.WriteFile(filepath.Join(folder, v.Version+".info"), info, 0o666),
		os.WriteFile(filepath.Join(folder, v.Version+".mod"), goMod, 0o666),
		os.WriteFile(filepath.Join(folder, v.Version+".zip"), b.Bytes(), 0o666))
}

// An outside is where the modules of a tree are fetched.
type outside struct {
	tree tree
	env  []string
	dir  string // a folder for whatever it needs
}

// newOutside makes a proxy of the tree and a module cache.
func newOutside(t *testing.T, of tree) outside {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), "go", "env", "-json", "GOMODCACHE", "GOPROXY").Output()
	if err != nil {
		t.Fatal(err)
	}
	var user struct{ GOMODCACHE, GOPROXY string }
	if err := json.Unmarshal(out, &user); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	proxy, cache := filepath.Join(dir, "proxy"), filepath.Join(dir, "cache")
	if err := of.proxy(t.Context(), proxy); err != nil {
		t.Fatal(err)
	}
	paths := make([]string, 0, len(of.modules))
	for _, m := range of.modules {
		paths = append(paths, m.path)
	}
	if err := linkCache(user.GOMODCACHE, cache, path.Dir(slices.Min(paths))); err != nil { // the library has the shortest
		t.Fatal(err)
	}
	return outside{tree: of, dir: dir, env: append(os.Environ(),
		"GOWORK=off",
		"GOMODCACHE="+cache,
		"GOPROXY=file://"+filepath.ToSlash(proxy)+","+user.GOPROXY,
		// What others made is checked by the sums of the tree; ours has none before it is published.
		"GOSUMDB=off",
		"GOPRIVATE=", "GONOPROXY=none",
		// The name of the cache's folder is in nothing that is compiled, so that what others
		// made is compiled once, not at each run. -modcacherw lets the folder be removed.
		"GOFLAGS=-mod=mod -trimpath -modcacherw",
		"CGO_ENABLED=0",
	)}
}

// linkCache makes a module cache of links to the user's, but for what is below the path
// ours: nobody may take what a test made of the tree for what was published.
func linkCache(user, own, ours string) error {
	apart := []string{ours, "cache/download/" + ours}
	var link func(name string) error
	link = func(name string) error {
		from, to := filepath.Join(user, name), filepath.Join(own, name)
		// In an empty cache, the folders above what is apart have to be there.
		if err := cmp.Or(os.MkdirAll(from, 0o777), os.MkdirAll(to, 0o777)); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		if err != nil {
			return err
		}
		for _, e := range entries {
			name := path.Join(name, e.Name())
			switch above := func(p string) bool { return strings.HasPrefix(p, name+"/") }; {
			case slices.Contains(apart, name):
			case slices.ContainsFunc(apart, above):
				err = link(name)
			default:
				err = os.Symlink(filepath.Join(user, name), filepath.Join(own, name))
			}
			if err != nil {
				return err
			}
		}
		return nil
	}
	return link(".")
}

// run runs the go command in a folder.
func (o outside) run(ctx context.Context, folder string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = folder, append(o.env, "PWD="+folder)
	var out, told strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &told
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("go %s: %w\n%s%s", strings.Join(args, " "), err, told.String(), out.String())
	}
	return out.String(), nil
}

// user makes an empty module that requires a module of the tree.
func (o outside) user(ctx context.Context, m module) (dir string, err error) {
	if dir, err = os.MkdirTemp(o.dir, ""); err != nil {
		return "", err
	}
	sums, err := o.sums(m)
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(filepath.Join(dir, "go.sum"), []byte(sums), 0o666); err != nil {
		return "", err
	}
	if _, err := o.run(ctx, dir, "mod", "init", "program.test"); err != nil {
		return "", err
	}
	// Unlike go get, this does not ask a public proxy whether a shorter path is a module.
	_, err = o.run(ctx, dir, "mod", "edit", "-require="+m.path+"@"+ofTree)
	return dir, err
}

// fetch gets a module into an empty one, finds what all its packages import, builds a
// program that imports those of its packages that are chosen, and runs the tests of
// those that are named.
func (o outside) fetch(ctx context.Context, m module, chosen func(name string) bool, tested ...string) error {
	dir, err := o.user(ctx, m)
	if err != nil {
		return err
	}
	list, err := o.run(ctx, dir, "list", "-deps", "-f", "{{.ImportPath}} {{.Name}}", m.path+"/...")
	if err != nil {
		return err
	}
	program, vet := "package program\n", []string{"vet", "."}
	for line := range strings.Lines(list) {
		name, kind, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch of, _ := o.tree.owner(name); {
		case of.path != m.path || slices.Contains(strings.Split(name, "/"), "internal") || !chosen(name):
		case kind == "main": // which nothing imports
			vet = append(vet, name)
		default:
			program += fmt.Sprintf("import _ %q\n", name)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, "program.go"), []byte(program), 0o666); err != nil {
		return err
	}
	if _, err := o.run(ctx, dir, "build", "."); err != nil {
		return err
	}
	if _, err := o.run(ctx, dir, vet...); err != nil {
		return err
	}
	if len(tested) == 0 {
		return nil
	}
	_, err = o.run(ctx, dir, append([]string{"test", "-short"}, tested...)...)
	return err
}

// owner returns the module of a package: the one with the longest path.
func (t tree) owner(name string) (owner module, ok bool) {
	for _, m := range t.modules {
		if (name == m.path || strings.HasPrefix(name, m.path+"/")) && len(m.path) > len(owner.path) {
			owner, ok = m, true
		}
	}
	return owner, ok
}

// sums returns the go.sum of a module without what it says of modules of the tree,
// whose sums are not those of the published ones.
func (o outside) sums(m module) (string, error) {
	text, err := os.ReadFile(filepath.Join(o.tree.top, m.folder, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	_, others := o.splitSums(string(text))
	return others, nil
}

func (o outside) splitSums(text string) (ours, others string) {
	for line := range strings.Lines(text) {
		name, _, _ := strings.Cut(line, " ")
		if _, ok := o.tree.module(name); ok {
			ours += line
		} else {
			others += line
		}
	}
	return ours, others
}

// tidy returns what "go mod tidy" would make of the go.mod and go.sum of a module.
func (o outside) tidy(ctx context.Context, m module) (goMod, goSum string, err error) {
	dir, err := os.MkdirTemp(o.dir, "")
	if err != nil {
		return "", "", err
	}
	folder := filepath.Join(o.tree.top, m.folder)
	text, err := os.ReadFile(filepath.Join(folder, "go.mod"))
	if err != nil {
		return "", "", err
	}
	sums, err := o.sums(m)
	if err != nil {
		return "", "", err
	}
	file := filepath.Join(dir, "go.mod")
	err = cmp.Or(os.WriteFile(file, text, 0o666), os.WriteFile(filepath.Join(dir, "go.sum"), []byte(sums), 0o666))
	if err != nil {
		return "", "", err
	}
	if _, err := o.run(ctx, folder, "mod", "tidy", "-modfile="+file); err != nil {
		return "", "", err
	}
	text, err = os.ReadFile(file)
	if err != nil {
		return "", "", err
	}
	tidySums, err := os.ReadFile(filepath.Join(dir, "go.sum"))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", "", err
	}
	_, others := o.splitSums(string(tidySums))
	return string(text), others, nil
}
