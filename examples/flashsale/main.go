// Flashsale sells what there is, and not more. First it sells 2 hair dryers to five
// customers, then 100 items to 10 000 buyers at the counters of several processes. A sale
// reads the stock, a number, decides, and writes it. Each sale is held without a lock and
// with one.
//
//	go run ./examples/flashsale [--store URL] [-o json] [--buyers N] [--items N] [--counters N]
//
// Without --store the lock is in a SQLite file in a temporary directory. The program
// exits with status 1 if a sale with the lock sold too much or too little.
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

	"github.com/batonhq/baton/open"
)

func main() {
	if os.Getenv(workerEnv) != "" {
		if err := work(os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr))
}

type report struct {
	Store  string `json:"store"`
	Dryers struct {
		Without dryerSale `json:"withoutLock"`
		With    dryerSale `json:"withLock"`
	} `json:"dryers"`
	Crowd struct {
		crowd
		Processes bool      `json:"processes"` // else the counters are in one process
		Without   crowdSale `json:"withoutLock"`
		With      crowdSale `json:"withLock"`
	} `json:"crowd"`
}

func run(args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("flashsale", flag.ContinueOnError)
	flags.SetOutput(stderr)
	url := flags.String("store", "", "`URL` of the store that keeps the lock (default a SQLite file that is removed at the end)")
	format := flags.String("o", "text", "`format` of the result: text or json")
	var c crowd
	flags.IntVar(&c.Buyers, "buyers", 10_000, "how many buyers come to the second sale")
	flags.IntVar(&c.Items, "items", 100, "how many items there are")
	flags.IntVar(&c.Counters, "counters", 4, "how many processes sell them")
	timeout := flags.Duration("timeout", 5*time.Minute, "when to give up")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if flags.NArg() > 0 || *format != "text" && *format != "json" ||
		c.Items < 1 || c.Counters < 2 || c.Buyers <= c.Items || c.Buyers < c.Counters {
		fmt.Fprintln(stderr, "flashsale: it takes an item, two counters, a buyer for each of them, and more buyers than items; -o text or json")
		flags.Usage()
		return 2
	}

	ctx, cancel := context.WithTimeout(context.Background(), *timeout)
	defer cancel()
	r, err := tell(ctx, *url, c)
	if err == nil {
		if *format == "json" {
			enc := json.NewEncoder(stdout)
			enc.SetIndent("", "  ")
			err = enc.Encode(r)
		} else {
			err = r.print(stdout)
		}
	}
	if err != nil {
		fmt.Fprintln(stderr, "flashsale:", err)
		return 1
	}
	if !r.Dryers.With.rightFull || !c.right(r.Crowd.With) {
		fmt.Fprintln(stderr, "flashsale: a sale with the lock was wrong")
		return 1
	}
	return 0
}

func tell(ctx context.Context, url string, c crowd) (r report, err error) {
	dir, err := os.MkdirTemp("", "flashsale-")
	if err != nil {
		return r, err
	}
	defer os.RemoveAll(dir)
	if url == "" {
		url = "sqlite:" + filepath.ToSlash(filepath.Join(dir, "locks.db"))
	}
	store, err := open.Store(ctx, url)
	if err != nil {
		return r, err
	}
	defer store.Close()
	r.Store = store.Traits().Store
	if r.Dryers.Without, err = dryersWithoutLock(ctx); err != nil {
		return r, err
	}
	if r.Dryers.With, err = dryersWithLock(ctx, store); err != nil {
		return r, err
	}

	r.Crowd.crowd = c
	r.Crowd.Processes = store.Traits().Processes
	without, with := process, process
	if !r.Crowd.Processes {
		without, with = inProcess(nil), inProcess(store)
	}
	if r.Crowd.Without, err = c.run(ctx, dir, order{}, without); err != nil {
		return r, err
	}
	r.Crowd.With, err = c.run(ctx, dir, order{Store: url}, with)
	return r, err
}

func (r report) print(w io.Writer) error {
	fmt.Fprintf(w, "%d hair dryers and %d customers, one lock on %s\n\n", dryers, len(customers), r.Store)
	table := tabwriter.NewWriter(w, 0, 0, 3, ' ', 0)
	fmt.Fprintln(table, "  customer\twants\twithout a lock\twith the lock")
	for i, c := range customers {
		fmt.Fprintf(table, "  %s\t%d\t%s\t%s\n", c.name, c.wants, got(r.Dryers.Without.Got[i]), got(r.Dryers.With.Got[i]))
	}
	fmt.Fprintf(table, "  sold\t\t%s\t%s\n", ofStock(r.Dryers.Without.Sold, dryers), ofStock(r.Dryers.With.Sold, dryers))
	if err := table.Flush(); err != nil {
		return err
	}

	where := "processes"
	if !r.Crowd.Processes {
		where = "counters in one process"
	}
	fmt.Fprintf(w, "\n%d items and %d buyers at %d %s\n\n", r.Crowd.Items, r.Crowd.Buyers, r.Crowd.Counters, where)
	fmt.Fprintln(table, "  \twithout a lock\twith the lock")
	fmt.Fprintf(table, "  sold\t%s\t%s\n", ofStock(r.Crowd.Without.Sold, r.Crowd.Items), ofStock(r.Crowd.With.Sold, r.Crowd.Items))
	fmt.Fprintf(table, "  left, says the file\t%d\t%d\n", r.Crowd.Without.Left, r.Crowd.With.Left)
	fmt.Fprintf(table, "  took\t%v\t%v\n", r.Crowd.Without.Took.Round(time.Millisecond), r.Crowd.With.Took.Round(time.Millisecond))
	return table.Flush()
}

func got(n int) string {
	if n == 0 {
		return "nothing"
	}
	return fmt.Sprintf("gets %d", n)
}

func ofStock(sold, stock int) string {
	s := fmt.Sprintf("%d of %d", sold, stock)
	if sold > stock {
		s += ", oversold"
	}
	return s
}
