package main

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"time"
)

// platforms are those that a release has the command for.
var platforms = []platform{
	{"linux", "amd64"},
	{"linux", "arm64"},
	{"darwin", "amd64"},
	{"darwin", "arm64"},
	{"windows", "amd64"},
	{"windows", "arm64"},
}

type platform struct{ os, arch string }

// here is the platform of this machine.
var here = platform{runtime.GOOS, runtime.GOARCH}

func (p platform) String() string { return p.os + "/" + p.arch }

// A release is what is built.
type release struct {
	top      string // the folder of the tree
	to       string // the folder for the files
	version  string // as of the tag: v1.2.3
	revision string
	time     time.Time // of the revision
	quick    bool      // packages need not be small
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	r := release{top: "."}
	flag.StringVar(&r.to, "to", "dist", "the `folder` for the files, which is made anew")
	flag.StringVar(&r.version, "version", "", "the version, as of the tag (default: what git describe says)")
	only := flag.String("only", "", "build for one `platform` only, such as linux/amd64")
	flag.Parse()
	if r.version != "" {
		if err := ready(r.top, r.version); err != nil {
			return err
		}
	}
	if err := r.describe(ctx); err != nil {
		return err
	}
	if err := cmp.Or(os.RemoveAll(r.to), os.MkdirAll(r.to, 0o755)); err != nil {
		return err
	}
	built := 0
	for _, p := range platforms {
		if *only != "" && *only != p.String() {
			continue
		}
		built++
		file, err := r.build(ctx, p)
		if err != nil {
			return fmt.Errorf("%s: %w", p, err)
		}
		if p.os == "linux" {
			if err := r.debian(ctx, p, file); err != nil {
				return fmt.Errorf("%s: .deb: %w", p, err)
			}
		}
	}
	if built == 0 {
		return fmt.Errorf("-only %s: it is one of %v", *only, platforms)
	}
	return r.sums()
}

// ready reports whether the CHANGELOG lacks the day of a version. A version like v1.2.3-rc1 needs
// none.
func ready(top, version string) error {
	parts := versionName.FindStringSubmatch(version)
	switch {
	case parts == nil:
		return fmt.Errorf("-version %q: it has the form v1.2.3, or v1.2.3-rc1", version)
	case parts[2] != "":
		return nil
	}
	changes, err := os.ReadFile(filepath.Join(top, "CHANGELOG.md"))
	if err != nil {
		return err
	}
	day := regexp.MustCompile(`(?m)^## ` + regexp.QuoteMeta(parts[1]) + `, \d{4}-\d{2}-\d{2}$`)
	if !day.Match(changes) {
		return fmt.Errorf("CHANGELOG.md has no line \"## %s, YEAR-MONTH-DAY\"", parts[1])
	}
	return nil
}

var versionName = regexp.MustCompile(`^v(\d+\.\d+\.\d+)(-[0-9A-Za-z.-]+)?$`)

// describe asks git for what no flag says.
func (r *release) describe(ctx context.Context) error {
	git := func(args ...string) (string, error) {
		text, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.top}, args...)...).Output()
		if err != nil {
			return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
		}
		return strings.TrimSpace(string(text)), nil
	}
	var err error
	if r.version == "" {
		if r.version, err = git("describe", "--always", "--dirty", "--match", "v*"); err != nil {
			return fmt.Errorf("%w; name the version: -version v1.2.3", err)
		}
		if !strings.HasPrefix(r.version, "v") { // no tag yet
			r.version = "v0.0.0-" + r.version
		}
	}
	if r.revision, err = git("rev-parse", "HEAD"); err != nil {
		return err
	}
	seconds, err := git("show", "-s", "--format=%cI", "HEAD")
	if err != nil {
		return err
	}
	r.time, err = time.Parse(time.RFC3339, seconds)
	return err
}

// build compiles the command for a platform.
func (r *release) build(ctx context.Context, p platform) (file string, err error) {
	name := "baton_" + r.version + "_" + p.os + "_" + p.arch
	if p.os == "windows" {
		name += ".exe"
	}
	if file, err = filepath.Abs(filepath.Join(r.to, name)); err != nil {
		return "", err
	}
	set := "-X main.released=" + r.version + " -X main.revision=" + r.revision + " -X main.revisionTime=" + r.time.UTC().Format(time.RFC3339)
	build := exec.CommandContext(ctx, "go", "build",
		"-trimpath", "-buildvcs=false", // of the tree: a copy of it has no history
		"-tags", "grpcnotrace", // its pages of traces have html/template: see package markup
		"-ldflags", "-s -w -buildid= "+set,
		"-o", file, "./cmd/baton")
	build.Dir = r.top
	build.Env = append(os.Environ(), "GOWORK=off", "CGO_ENABLED=0", "GOFLAGS=", "GOAMD64=v1", "GOARM64=v8.0", "GOEXPERIMENT=", "GOOS="+p.os, "GOARCH="+p.arch, "PWD="+r.top)
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return file, nil
}

// host is a command that this machine can run: the one that was built, or one made for it.
func (r *release) host(ctx context.Context, p platform, file string) (string, func(), error) {
	if p == here {
		return file, func() {}, nil
	}
	dir, err := os.MkdirTemp("", "baton-release-")
	if err != nil {
		return "", nil, err
	}
	clean := func() { os.RemoveAll(dir) }
	own := *r
	own.to = dir
	file, err = own.build(ctx, here)
	if err != nil {
		clean()
		return "", nil, err
	}
	return file, clean, nil
}

// sums writes the checksums of all files.
func (r *release) sums() error {
	files, err := os.ReadDir(r.to)
	if err != nil {
		return err
	}
	var lines []string
	for _, f := range files {
		text, err := os.ReadFile(filepath.Join(r.to, f.Name()))
		if err != nil {
			return err
		}
		lines = append(lines, fmt.Sprintf("%x  %s\n", sha256.Sum256(text), f.Name()))
	}
	if len(lines) == 0 {
		return errors.New("nothing was built")
	}
	slices.SortFunc(lines, func(a, b string) int { return cmp.Compare(a[64:], b[64:]) })
	return os.WriteFile(filepath.Join(r.to, "SHA256SUMS"), []byte(strings.Join(lines, "")), 0o644)
}
