// Testrun runs the tests of all modules side by side, as make test does.
//
// It builds one test program after the other, the longest first, and runs
// several of them at once: most tests wait for a lease to end or for a server
// to start, and leave the processors to others. It prints a line for each part
// as it ends, keeps all output in the folder .test, goes on after a failure,
// and says at the end what failed and how to repeat just that.
//
//	go run ./internal/testrun [flags] [package …]
//
// A package is named as in "go test": ./store/redisstore, ./store/..., or
// ./bench/.... Without one all packages of all modules are tested.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"syscall"
)

func main() {
	r := runner{top: "."}
	flag.IntVar(&r.lanes, "lanes", runtime.NumCPU(), "how many test programs run at once, beside one that only waits")
	flag.IntVar(&r.parallel, "parallel", 0, "how many parallel tests of one program run at once; 0 is two for each processor, or one on a slow machine")
	flag.StringVar(&r.run, "run", "", "only the tests that match this regular expression, as in go test")
	flag.BoolVar(&r.short, "short", false, "shorter tests, as in go test")
	flag.DurationVar(&r.timeout, "timeout", 0, "how long one test program may take; 0 is 15 minutes, or 30 on a slow machine")
	flag.BoolVar(&r.lint, "lint", false, "run make lint first")
	flag.IntVar(&r.again, "again", 0, "how many tests, at most, that failed beside others are run once more, alone; those that pass then are listed, and are no failure")
	flag.StringVar(&r.out, "out", ".test", "the folder for the output of all tests and for their results")
	inventory := flag.Bool("inventory", false, "run nothing; list which tests and contract cases the last run had, and on which stores")
	before := flag.String("before", "", "with -inventory: list what an earlier results.jsonl has and the last run has not, and the other way round")
	flag.Parse()
	r.patterns = flag.Args()

	// A run under nohup inherits that HUP is ignored, and so would every program that the
	// tests start, some of which are sent HUP. A signal that is caught is a child's own again.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	signal.Notify(make(chan os.Signal, 1), syscall.SIGHUP)

	var err error
	if *inventory {
		err = printInventory(os.Stdout, r.results(), *before)
	} else {
		err = r.all(ctx, os.Stdout)
	}
	if err != nil {
		if !errors.Is(err, errFailed) { // which was told already
			fmt.Fprintln(os.Stderr, "testrun:", err)
		}
		os.Exit(1)
	}
}
