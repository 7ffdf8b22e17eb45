// Fencing is the story of the pause that beats every lease. A holder checks its lease,
// which is valid. Before it writes, SIGSTOP stops it for longer than the lease lasts. The
// store grants the lock to the next holder, who writes. The first holder resumes, and its
// write replaces the other one. With a guard in front of the account that write is
// refused.
//
//	go run ./examples/fencing [--store URL] [--pauses N] [-o json]
//
// Then the same moment is made N times without waiting for a lease to expire: the holder
// is held back, its lock ends without its knowledge, and is granted to the next holder.
// The program exits with status 1 if a stale write passed the guard.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
)

func main() {
	if os.Getenv(holderEnv) != "" {
		os.Exit(holderMain(os.Stdin, os.Stdout))
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type report struct {
	Store  string `json:"store"`
	Stop   *stop  `json:"stop,omitempty"` // nil if other processes cannot use the store
	Pauses counts `json:"pauses"`
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("fencing", flag.ContinueOnError)
	flags.SetOutput(stderr)
	url := flags.String("store", "", "`URL` of the store that keeps the lock (default a SQLite file that is removed)")
	pauses := flags.Int("pauses", 1000, "`number` of pauses that are induced")
	format := flags.String("o", "text", "`format` of the result: text or json")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *format != "text" && *format != "json" || *pauses < 1 {
		flags.Usage()
		return 2
	}
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Minute)
	defer cancel()
	r, err := tell(ctx, *url, *pauses)
	if err == nil {
		err = r.print(stdout, *format)
	}
	if err == nil {
		err = r.wrong()
	}
	if err != nil {
		fmt.Fprintln(stderr, "fencing:", err)
		return 1
	}
	return 0
}

func tell(ctx context.Context, url string, pauses int) (r report, err error) {
	if url == "" {
		dir, err := os.MkdirTemp("", "fencing")
		if err != nil {
			return r, err
		}
		defer os.RemoveAll(dir)
		url = "sqlite:" + filepath.Join(dir, "locks.db")
	}
	store, err := open.Store(ctx, url)
	if err != nil {
		return r, err
	}
	defer store.Close()
	traits := store.Traits()
	r.Store = traits.Store
	if (traits.Processes || traits.Machines) && canStop {
		if r.Stop, err = stopTheHolder(ctx, store, url); err != nil {
			return r, err
		}
	}
	if _, ok := store.(driver.Inspector); !ok {
		return r, fmt.Errorf("store %s cannot break a lock", r.Store)
	}
	r.Pauses, err = induce(ctx, store, pauses)
	return r, err
}

// wrong returns an error if the guard let a stale write through.
func (r report) wrong() error {
	switch {
	case r.Stop != nil && (r.Stop.With.Stale || r.Stop.With.Account != second):
		return fmt.Errorf("with the guard the account says %q: a stale write was accepted", r.Stop.With.Account)
	case r.Pauses.With > 0:
		return fmt.Errorf("the guard accepted %d of %d stale writes", r.Pauses.With, r.Pauses.Tried)
	}
	return nil
}

func (r report) print(w io.Writer, format string) error {
	if format == "json" {
		enc := json.NewEncoder(w)
		enc.SetIndent("", "  ")
		return enc.Encode(r)
	}
	if s := r.Stop; s != nil {
		fmt.Fprintf(w, "A holder of a lock on %s is stopped between its last look at the lease and its write.\n\n", r.Store)
		for _, step := range s.Steps {
			fmt.Fprintf(w, "  %s\n", step)
		}
		fmt.Fprintln(w)
		table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
		fmt.Fprintln(table, "\tthe stale write\tthe account says")
		fmt.Fprintf(table, "without a guard\t%s\t%s\n", s.Without.verdict(), s.Without.Account)
		fmt.Fprintf(table, "with the guard\t%s\t%s\n", s.With.verdict(), s.With.Account)
		if err := table.Flush(); err != nil {
			return err
		}
		fmt.Fprintln(w)
	}
	_, err := fmt.Fprintf(w, "%d pauses on %s: %d stale writes tried, %d accepted without a guard, %d with it.\n",
		r.Pauses.Tried, r.Store, r.Pauses.Tried, r.Pauses.Without, r.Pauses.With)
	return err
}
