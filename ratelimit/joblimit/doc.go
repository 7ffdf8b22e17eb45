// Package joblimit limits the jobs of a work queue by key, over all workers: how many run
// at a time, and how many begin within a period. A job that may not run now goes back to
// its queue with the time to come again.
//
//	limit, err := joblimit.New(joblimit.Config{Locks: locks, Running: 5})
//	…
//	err = limit.Run(ctx, "tenant/42", func(ctx context.Context) error {
//		return work(ctx) // ctx ends if the permit is lost
//	})
//	var back *joblimit.BackError
//	if errors.As(err, &back) {
//		// the job did not run: again in back.After
//	}
//
// The modules adapters/asynq, adapters/river and adapters/temporal do that last part.
//
// # What is promised
//
// At most Config.Running jobs of a key have a valid permit at the same instant, with any
// number of workers, as far as the store's promises for permits go (GUARANTEES.md).
// Config.Rate is as exact as its limits.
//
// The permit is released when the job returns or panics. The permit of a killed worker
// expires within the TTL of Config.Locks.
//
// A job that did not run has consumed nothing of the rate, unless its worker was killed
// meanwhile or an answer of the store was lost.
//
// The failure of a store is no failure of a job: the job goes back, before half of the
// time to its context's deadline has passed. So does a job whose permit is lost before it
// begins.
//
// # What is not
//
// Order. Jobs that went back come again in an arbitrary order, and new jobs may run
// before them. The few jobs that wait in their workers have the order of the store.
//
// That a job stops when its permit is lost. Its context ends, with the *baton.LostError
// as the cause, before the store can give the permit to another job.
//
// # When a job comes again
//
// Thousands of jobs that went back must not come again all at once. So each process
// measures, for each key with such jobs, the time from one job that may run to the next,
// and lets jobs come again one after the other, a little faster than that. The rate's own
// answer is the earliest time. No job is sent away for longer than Config.Longest at a
// time: with more jobs than run in that time, they come again at random within it, and
// may go back more than once.
// at random within it, and go back more than once.
// In addition, one job of each key waits in its worker in each process, for Config.Wait
// at most, so that a free permit finds its next job at once. At most half of the jobs in
// their workers wait, at least one, over all keys: jobs of keys without a permit do not
// keep those of other keys from running. Jobs of RunWaiting have no such bound: each
// holds its worker until it may run, so that jobs of one key can hold all workers.
package joblimit
