// Package joblimit limits the jobs of a work queue by key, over all workers: how
// many run at a time, and how many begin within a period. A job that may not run now
// goes back to its queue and is told when to come again.
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
// Never more than Config.Running jobs of a key believe at the same instant that they
// may run, however many workers there are; what the store promises of permits holds
// (GUARANTEES.md). Config.Rate is as exact as its limits.
//
// The permit is released when the job returns, and when it panics. That of a worker
// that was killed is free when it has expired: within the TTL of Config.Locks.
//
// A job that did not run has consumed nothing of the rate, unless its worker was killed
// meanwhile or an answer of the store was lost.
//
// A store that fails is no failure of a job: the job goes back, before half of
// the time to its context's deadline has passed. So does a job whose permit is lost before
// it begins.
//
// # What is not
//
// Order. Jobs that went back come again in an order that the queue, the workers and
// chance make, and jobs that are new may run before them. The few that wait in
// their workers have the order of the store.
//
// That a job stops when its permit is lost. Its context ends, with the
// *baton.LostError as the cause, before the store can give the permit to another job.
//
// # When a job comes again
//
// Thousands of jobs that went back must not come again all at once. So each process
// counts, for each key that has such jobs, how long it takes from one job that may run
// to the next, and lets jobs come again one after the other, a little faster than
// that. The rate's own answer is the earliest time. No job is sent away for longer
// than Config.Longest at a time: with more jobs than run in that time, jobs come again
// at random within it, and go back more than once.
//
// Beside that, one job of each key waits in its worker in each process, for
// Config.Wait at most, so that a permit which becomes free finds its next job at once. At
// most half of the jobs that are in their workers do, one at least, whatever their keys
// are: jobs of keys whose permits are taken do not keep those of other keys from running.
// Jobs of RunWaiting are not bounded in this way: each of them holds its worker until it may
// run, so that jobs of one key can hold all workers.
package joblimit
