package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"runtime"
	"slices"
	"time"
)

// slowStart is how long the start of a program takes, at least, on a machine that is
// slow. Where tests get by beside two of their kind on each processor it takes half
// of that, and where they miss deadlines it took more: such a machine spends most of
// its time in the kernel, which the tests enter all the time.
const slowStart = 1500 * time.Microsecond

// setPace chooses what the flags leave open: how many tests run at once and how long
// they may take.
func (r *runner) setPace(ctx context.Context, w io.Writer) {
	takes := startOfProgram(ctx)
	slow := takes >= slowStart
	if slow {
		fmt.Fprintf(w, "a program takes %v to start: on a machine as slow as this fewer tests run at once\n", takes.Round(10*time.Microsecond))
	}
	if r.parallel == 0 {
		r.parallel = 2 * runtime.NumCPU()
		if slow {
			r.parallel = runtime.NumCPU()
		}
	}
	if r.timeout == 0 {
		r.timeout = 15 * time.Minute
		if slow {
			r.timeout = 30 * time.Minute
		}
	}
}

// startOfProgram is the median of how long a program takes that does nothing, 0 if
// there is none.
func startOfProgram(ctx context.Context) time.Duration {
	const times = 41
	var all []time.Duration
	for range times {
		began := time.Now()
		if exec.CommandContext(ctx, "true").Run() != nil {
			return 0
		}
		all = append(all, time.Since(began))
	}
	slices.Sort(all)
	return all[times/2]
}
