// Command comparison starts one server of each kind as private children, measures all
// stores in one run of "baton bench", and writes docs/comparison.md and
// docs/comparison.html. Run it by "make comparison", on a machine that has nothing else
// to do.
package main

import (
	"bytes"
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
)

// contender is a store, on a server that is set up as in production: what it has
// granted is on the disk, or as near as possible.
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
		// durable=true lets them vote although they have just been started: none of
		// them restarts.
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
	root := flag.String("root", "..", "the `directory` of the repository")
	only := flag.String("only", "", "compare only these `stores`, separated by commas")
	flag.Parse()
	if err := run(*root, *each, *only); err != nil {
		fmt.Fprintln(os.Stderr, "comparison:", err)
		os.Exit(1)
	}
}

func run(root string, each time.Duration, only string) error {
	servers := new(testserver.Program)
	defer servers.Close()
	dir, err := os.MkdirTemp("", "baton-comparison-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)

	program := filepath.Join(dir, "baton")
	build := exec.Command("go", "build", "-o", program, "./cmd/baton")
	build.Dir, build.Stderr = root, os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build baton: %w", err)
	}

	var page bytes.Buffer
	page.WriteString(head)
	var stores []string
	for _, c := range contenders {
		if only != "" && !slices.Contains(strings.Split(only, ","), c.name) {
			continue
		}
		fmt.Fprintf(os.Stderr, "comparison: start %s\n", c.name)
		stores = append(stores, c.name+"="+c.start(servers, dir))
		fmt.Fprintf(&page, "- **%s**: %s\n", c.name, c.setup)
	}
	page.WriteString("\n")

	// Ctrl-C is for the measuring process, which then prints what it has; the servers
	// stay until that has ended.
	signal.Ignore(os.Interrupt, syscall.SIGTERM)
	args := []string{"bench", "--for", (time.Duration(len(stores)) * each).String(), "-o", "markdown", "--html", filepath.Join(root, "docs", "comparison.html")}
	bench := exec.Command(program, append(args, stores...)...)
	bench.Stdout, bench.Stderr = &page, os.Stderr
	if err := bench.Run(); err != nil {
		return fmt.Errorf("baton bench: %w", err)
	}
	return os.WriteFile(filepath.Join(root, "docs", "comparison.md"), page.Bytes(), 0o644)
}

const head = `# The stores compared

What ` + "`make comparison`" + ` printed: every store in one run, the stores taking turns, on one machine that runs the
servers, too. [comparison.html](comparison.html) has it as plots. Read it as ratios: a network between program and server
adds its round trip to all of them but memory and SQLite.

`
