// Points is the story of a lost update. An account has 1000 points. The gift
// shop takes 999 of them for a gift while a promotion grants 100. Without a
// lock both read 1000: the gift is sent, and 1100 points remain. With the
// lock 101 remain.
//
//	go run ./examples/points [--store URL] [-o json]
//
// The program exits with status 1 if the result with the lock is wrong.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/batonhq/baton/open"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type report struct {
	Store   string  `json:"store"`
	Without outcome `json:"withoutLock"`
	With    outcome `json:"withLock"`
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("points", flag.ContinueOnError)
	flags.SetOutput(stderr)
	url := flags.String("store", "memory:", "`URL` of the store that keeps the lock")
	format := flags.String("o", "text", "`format` of the result: text or json")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *format != "text" && *format != "json" {
		flags.Usage()
		return 2
	}

	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	r, err := tell(ctx, *url)
	if err != nil {
		fmt.Fprintln(stderr, "points:", err)
		return 1
	}
	if *format == "json" {
		enc := json.NewEncoder(stdout)
		enc.SetIndent("", "  ")
		err = enc.Encode(r)
	} else {
		err = r.print(stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "points:", err)
		return 1
	}
	if !r.With.Right {
		fmt.Fprintf(stderr, "points: with the lock %d points remain, not %d\n", r.With.Points, right)
		return 1
	}
	return 0
}

func tell(ctx context.Context, url string) (r report, err error) {
	store, err := open.Store(ctx, url)
	if err != nil {
		return r, err
	}
	defer store.Close()
	r.Store = store.Traits().Store
	if r.Without, err = withoutLock(ctx); err != nil {
		return r, err
	}
	r.With, err = withLock(ctx, store)
	return r, err
}

func (r report) print(w io.Writer) error {
	fmt.Fprintf(w, "An account has %d points. The shop takes %d for a gift while a promotion grants %d.\n", atFirst, price, bonus)
	for _, part := range []struct {
		name string
		outcome
	}{
		{"Without a lock", r.Without},
		{"With a lock on " + r.Store, r.With},
	} {
		fmt.Fprintf(w, "\n%s\n", part.name)
		for _, step := range part.Steps {
			fmt.Fprintf(w, "  %s\n", step)
		}
	}
	fmt.Fprintln(w)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "\tgift\tpoints")
	fmt.Fprintf(table, "without a lock\t%s\t%d\t%s\n", sent(r.Without.Gift), r.Without.Points, verdict(r.Without))
	fmt.Fprintf(table, "with the lock\t%s\t%d\t%s\n", sent(r.With.Gift), r.With.Points, verdict(r.With))
	return table.Flush()
}

func sent(gift bool) string {
	if gift {
		return "sent"
	}
	return "kept"
}

func verdict(o outcome) string {
	if o.Right {
		return "right"
	}
	return fmt.Sprintf("wrong: %d too many", o.Points-right)
}
