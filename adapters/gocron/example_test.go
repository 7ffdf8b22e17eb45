package batongocron_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-co-op/gocron/v2"

	"github.com/batonhq/baton"
	batongocron "github.com/batonhq/baton/adapters/gocron"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/store/memstore"
)

// Every scheduler has the job; each tick runs on one of them.
func ExampleLocker() {
	locks, err := baton.New(memstore.New(), baton.Config{}) // a store that all schedulers share
	if err != nil {
		panic(err)
	}
	locker := &batongocron.Locker{Locks: locks, Prefix: "jobs/", Hold: 10 * time.Second}
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		panic(err)
	}
	done := make(chan bool)
	job, err := s.NewJob(gocron.DailyJob(1, gocron.NewAtTimes(gocron.NewAtTime(3, 0, 0))), gocron.NewTask(func() {
		lease := locker.Lease("report")
		work := lease.Context(context.Background()) // ends if the lock is lost
		fmt.Println(work.Err(), lease.Token() > 0)
		close(done)
	}), gocron.WithName("report"))
	if err != nil {
		panic(err)
	}
	s.Start()
	if err := job.RunNow(); err != nil {
		panic(err)
	}
	<-done
	if err := s.Shutdown(); err != nil {
		panic(err)
	}
	// Output: <nil> true
}

// One scheduler leads and runs all jobs.
func ExampleElector() {
	locks, err := baton.New(memstore.New(), baton.Config{}) // a store that all schedulers share
	if err != nil {
		panic(err)
	}
	var elector batongocron.Elector
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error)
	go func() { ended <- elector.Run(ctx, &election.Candidate{Locks: locks, Name: "scheduler"}) }()
	s, err := gocron.NewScheduler(gocron.WithDistributedElector(&elector))
	if err != nil {
		panic(err)
	}
	s.Start()
	// …
	if err := s.Shutdown(); err != nil { // first, so that no job runs when another leads
		panic(err)
	}
	cancel()
	fmt.Println(errors.Is(<-ended, context.Canceled))
	// Output: true
}
