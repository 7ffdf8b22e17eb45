// Firstlock shows how a process waits for a lock: the holder starts a second process,
// which waits for its turn. The lock is in a SQLite file, so nothing has to be installed.
//
//	go run ./examples/firstlock
package main

import (
	"context"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/sqlitestore"
)

func main() {
	log.SetOutput(os.Stdout)
	log.SetFlags(log.Ltime | log.Lmsgprefix)
	ctx, err := context.Background(), error(nil)
	if len(os.Args) == 1 {
		log.SetPrefix("first process:  ")
		err = first(ctx)
	} else {
		log.SetPrefix("second process: ")
		err = locked(ctx, os.Args[1], func(ctx context.Context) error { return work(ctx, time.Second) })
	}
	if err != nil {
		log.Fatal(err)
	}
}

// first holds the lock for two seconds. Meanwhile it starts the second process.
func first(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "firstlock")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	program, err := os.Executable()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, "locks.db")
	second := exec.CommandContext(ctx, program, file)
	second.Stdout, second.Stderr = os.Stdout, os.Stderr
	err = locked(ctx, file, func(ctx context.Context) error {
		if err := second.Start(); err != nil {
			return err
		}
		return work(ctx, 2*time.Second)
	})
	if err != nil {
		return err
	}
	return second.Wait()
}

// locked calls do while it holds the lock "report" of a file.
func locked(ctx context.Context, file string, do func(context.Context) error) error {
	store, err := sqlitestore.Open(ctx, file)
	if err != nil {
		return err
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{Events: &baton.Events{
		Waiting: func(_ context.Context, e baton.LockEvent) {
			log.Printf("waits, because the lock %q is held", e.Key)
		},
		Acquired: func(_ context.Context, e baton.LockEvent) {
			log.Printf("has the lock %q after %.1f s, with the token %d", e.Key, e.Waited.Seconds(), e.Token)
		},
	}})
	if err != nil {
		return err
	}
	return locks.Do(ctx, "report", func(ctx context.Context, _ *baton.Lease) error { return do(ctx) })
}

// work must not happen twice at the same time.
func work(ctx context.Context, took time.Duration) error {
	select {
	case <-time.After(took):
		log.Printf("has worked for %v, and releases the lock", took)
		return nil
	case <-ctx.Done(): // the lock was lost: stop
		return context.Cause(ctx)
	}
}
