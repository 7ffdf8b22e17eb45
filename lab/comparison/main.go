// Command comparison starts one server of each kind as private children, measures all
// stores in one run of "baton-lab bench", and writes lab/results/comparison.json and, from
// that, lab/results/comparison.md and lab/results/comparison.html. Run it by "make
// comparison", on an otherwise idle machine. With -draw it does not measure, and only writes
// the pages again.
package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/measure"
	"github.com/batonhq/baton/lab/measure/page"
)

// contender is a store, on a server that is set up as in production: a granted lock is on
// the disk, or as near as possible.
type contender struct {
	name  string
	setup string
	start func(t testserver.TB, dir string) (url string)
}

var contenders = []contender{
	{"memory", "the goroutines of one process, no server", func(testserver.TB, string) string { return "memory:" }},
	{"SQLite", "a file on the disk, WAL, every commit synced", func(_ testserver.TB, dir string) string {
		return "sqlite:" + filepath.Join(dir, "locks.db")
	}},
	{"Redis", "one server, appendonly yes, appendfsync everysec", func(t testserver.TB, _ string) string {
		return "redis://" + testserver.Redis(t, "--appendonly", "yes").Addr
	}},
	{"Redlock of five", "five servers on this machine, appendonly yes, appendfsync everysec", func(t testserver.TB, _ string) string {
		nodes := testserver.RedisNodes(t, 5, "--appendonly", "yes")
		// durable=true lets them vote although they have just been started: they do not
		// restart.
		return "redlock://" + strings.Join(testserver.Addrs(nodes), ",") + "?durable=true"
	}},
	{"MariaDB", "one server, every commit synced", func(t testserver.TB, _ string) string {
		return "mysql://root@" + testserver.MariaDB(t).Addr + "/baton"
	}},
	{"PostgreSQL", "one server, every commit synced that must be", func(t testserver.TB, _ string) string {
		s := testserver.Postgres(t, "-c", "fsync=on", "-c", "synchronous_commit=on", "-c", "full_page_writes=on")
		return s.URL(s.Database(t))
	}},
	{"ZooKeeper", "one server, every transaction synced", func(t testserver.TB, _ string) string {
		return "zk://" + testserver.ZooKeeper(t).Addr + "/locks"
	}},
	{"ZooKeeper of three", "three servers on this machine and its disk, every transaction synced by a majority", func(t testserver.TB, _ string) string {
		return "zk://" + strings.Join(testserver.ZooKeeperEnsemble(t, nil).Addrs(), ",") + "/locks"
	}},
	{"etcd", "one server, every write synced", func(t testserver.TB, _ string) string {
		return "etcd://" + testserver.Etcd(t, "--unsafe-no-fsync=false").Addr + "/locks"
	}},
	{"etcd of three", "three servers on this machine and its disk, every write synced by a majority", func(t testserver.TB, _ string) string {
		var members []string
		for _, m := range testserver.EtcdThree(t, "--unsafe-no-fsync=false").Members {
			members = append(members, m.Addr)
		}
		return "etcd://" + strings.Join(members, ",") + "/locks"
	}},
}

func main() {
	each := flag.Duration("each", 90*time.Second, "how long each store is measured")
	root := flag.String("root", ".", "the `directory` of the repository")
	only := flag.String("only", "", "compare only these `stores`, separated by commas")
	again := flag.Bool("draw", false, "measure nothing: write the pages from lab/results/comparison.json")
	flag.Parse()
	var err error
	if !*again {
		err = run(*root, *each, *only)
	}
	if err == nil {
		err = draw(*root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "comparison:", err)
		os.Exit(1)
	}
}

// stored is the file with the figures, from which the pages are made.
func stored(root string) string { return filepath.Join(root, "lab", "results", "comparison.json") }

// run measures, and writes the file and the pages.
func run(root string, each time.Duration, only string) error {
	servers := new(testserver.Program)
	defer servers.Close()
	dir, err := os.MkdirTemp("", "baton-comparison-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	program := filepath.Join(dir, "baton-lab")
	build := exec.Command("go", "build", "-o", program, "./lab/cmd/baton-lab")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build baton-lab: %w", err)
	}

	var stores []string
	for _, c := range contenders {
		if only != "" && !slices.Contains(strings.Split(only, ","), c.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "comparison: start %s\n", c.name)
		stores = append(stores, c.name+"="+c.start(servers, dir))
	}

	// Ctrl-C is for the measuring process, which then prints its results so far; the servers
	// must not end earlier.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	args := []string{"bench", "--for", (time.Duration(len(stores)) * each).String(), "-o", "json"}
	bench := exec.Command(program, append(args, stores...)...)
	var out bytes.Buffer
	bench.Stdout, bench.Stderr = &out, os.Stderr
	if err := bench.Run(); err != nil {
		return fmt.Errorf("baton-lab bench: %w", err)
	}
	var report measure.Report
	if err := json.Unmarshal(out.Bytes(), &report); err != nil {
		return fmt.Errorf("read what baton-lab bench wrote: %w", err)
	}
	if err := report.Result.Steady(); err != nil {
		return err
	}
	// The servers are gone, so their addresses are useless.
	describe(&report)
	text, err := json.MarshalIndent(&report, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(stored(root), append(text, '\n'), 0o644)
}

// describe replaces each store's URL with its setup.
func describe(r *measure.Report) {
	for i, s := range r.Stores {
		for _, c := range contenders {
			if c.name == s.Name {
				r.Stores[i].About = c.setup
			}
		}
	}
}

// draw writes the pages.
func draw(root string) error {
	all, err := pages(root)
	if err != nil {
		return err
	}
	for name, text := range all {
		if err := os.WriteFile(filepath.Join(root, name), text, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pages makes the pages from the file: names in the repository and contents.
func pages(root string) (map[string][]byte, error) {
	text, err := os.ReadFile(stored(root))
	if err != nil {
		return nil, err
	}
	var report measure.Report
	if err := json.Unmarshal(text, &report); err != nil {
		return nil, fmt.Errorf("%s: %w", stored(root), err)
	}
	if err := report.Result.Steady(); err != nil {
		return nil, fmt.Errorf("%s: %w", stored(root), err)
	}
	describe(&report)
	var b strings.Builder
	b.WriteString(head)
	for _, s := range report.Stores {
		fmt.Fprintf(&b, "- **%s**: %s\n", s.Name, s.About)
	}
	b.WriteString("\n")
	report.Markdown(&b)
	var html bytes.Buffer
	if err := page.Write(&html, &report); err != nil {
		return nil, err
	}
	return map[string][]byte{"lab/results/comparison.md": []byte(b.String()), "lab/results/comparison.html": html.Bytes()}, nil
}

const head = `# The stores compared

What ` + "`make comparison`" + ` measured: every store in one run, the stores taking turns, on one machine that runs the
servers, too. **[The same as plots](comparison.html)**. Read it as ratios: a network between program and server
adds its round trip to all of them but memory and SQLite.

`
