package election_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/store/memstore"
)

// One of many programs schedules. It stops before another can begin.
func ExampleRun() {
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		panic(err)
	}
	err = election.Run(context.Background(), locks, "scheduler", func(ctx context.Context, l *election.Leadership) error {
		for job := range 3 {
			if ctx.Err() != nil { // lost: stand again
				return ctx.Err()
			}
			fmt.Println("job", job, l.Token() > 0)
		}
		return nil // done for good
	})
	fmt.Println(err)
	// Output:
	// job 0 true
	// job 1 true
	// job 2 true
	// <nil>
}

// The resource checks what the leader writes: it refuses a leader that was stopped,
// and followed by another, when that continues.
func ExampleLeadership_Token() {
	ctx := context.Background()
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		panic(err)
	}
	var gate guard.Gate // in the process through which all write
	err = election.Run(ctx, locks, "scheduler", func(ctx context.Context, l *election.Leadership) error {
		return gate.Do(ctx, "plan", guard.Of(l), func() error {
			fmt.Println("the plan is written")
			return nil
		})
	})
	fmt.Println(err)
	earlier := guard.Pass{Token: 1}
	fmt.Println(errors.Is(gate.Do(ctx, "plan", earlier, func() error { return nil }), guard.ErrStale))
	// Output:
	// the plan is written
	// <nil>
	// true
}

// A leader publishes its address, and other programs ask for it.
func ExampleLeader() {
	ctx := context.Background()
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		panic(err)
	}
	c := election.Candidate{Locks: locks, Name: "api", Value: "10.0.0.7:8080"}
	err = c.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
		term, err := election.Leader(ctx, locks, "api")
		fmt.Println(term.Value, term.Token == l.Token(), err)
		return nil
	})
	if err != nil {
		panic(err)
	}
	_, err = election.Leader(ctx, locks, "api")
	fmt.Println(errors.Is(err, election.ErrNoLeader))
	// Output:
	// 10.0.0.7:8080 true <nil>
	// true
}

// A leader knows its port only when it listens.
func ExampleLeadership_Publish() {
	ctx := context.Background()
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		panic(err)
	}
	c := election.Candidate{Locks: locks, Name: "api", Value: "10.0.0.7, starting"}
	err = c.Run(ctx, func(ctx context.Context, l *election.Leadership) error {
		term, _ := election.Leader(ctx, locks, "api")
		fmt.Println(term.Value)
		if err := l.Publish(ctx, "10.0.0.7:41213"); err != nil {
			return err
		}
		term, _ = election.Leader(ctx, locks, "api")
		fmt.Println(term.Value)
		return nil
	})
	fmt.Println(err)
	// Output:
	// 10.0.0.7, starting
	// 10.0.0.7:41213
	// <nil>
}

// A program that cannot be sure of what it calls ends when its leader does not stop.
func ExampleEvents() {
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		panic(err)
	}
	c := election.Candidate{Locks: locks, Name: "scheduler", Events: &election.Events{
		Late: func(_ context.Context, e election.LeadershipEvent) {
			fmt.Fprintf(os.Stderr, "%s goes on %v after its end: %v\n", e.Name, e.Since, e.Cause)
			os.Exit(1)
		},
		Ended: func(_ context.Context, e election.LeadershipEvent) {
			fmt.Println(e.Name, "on", e.Store, "ended:", e.Err)
		},
	}}
	err = c.Run(context.Background(), func(context.Context, *election.Leadership) error {
		return errors.New("nothing to do")
	})
	fmt.Println(err)
	// Output:
	// scheduler on memory ended: nothing to do
	// nothing to do
}

// Observers see every leader that stays for longer than half a second.
func ExampleObserve() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		panic(err)
	}
	c := election.Candidate{Locks: locks, Name: "api", Value: "10.0.0.7:8080"}
	go c.Run(ctx, func(ctx context.Context, _ *election.Leadership) error {
		<-ctx.Done()
		return ctx.Err()
	})
	for term, err := range election.Observe(ctx, locks, "api") {
		if err != nil {
			fmt.Println("the store cannot be asked:", err) // and Observe continues
			continue
		}
		if term.Led {
			fmt.Println("requests go to", term.Value)
			return
		}
	}
	// Output: requests go to 10.0.0.7:8080
}
