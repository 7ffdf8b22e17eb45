package guard_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"

	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/store/memstore"
)

// program is one of two that share a lock. These examples leave out errors that do
// not concern guards.
func program(store *memstore.Store, owner string) *baton.Locker {
	locks, err := baton.New(store, baton.Config{Owner: owner})
	if err != nil {
		panic(err)
	}
	return locks
}

// What if the process stops here? The holder looks at its lease, and is stopped;
// the next one gets the lock; the holder continues and writes.
func Example() {
	ctx, store := context.Background(), memstore.New()
	slept, awake := program(store, "slept"), program(store, "awake")
	var account guard.Gate
	write := func(who string, lease *baton.Lease) {
		err := account.Do(ctx, "account/7", guard.Of(lease), func() error { return nil })
		fmt.Println(who, "writes, refused:", errors.Is(err, guard.ErrStale))
	}

	lease, _ := slept.Lock(ctx, "account/7")
	fmt.Println("slept holds the lock:", lease.Err() == nil)
	// It stops here. An operator breaks the lock, or the lease expires.
	awake.Break(ctx, "account/7")
	next, _ := awake.Lock(ctx, "account/7")
	write("awake", next)
	write("slept", lease)
	next.Unlock()
	// Output:
	// slept holds the lock: true
	// awake writes, refused: false
	// slept writes, refused: true
}

// Which token do I pass? That of the lease that protects this write. Another
// lease on the same key has a higher one; those of other keys cannot be
// compared with it.
func ExampleOf() {
	ctx := context.Background()
	locks := program(memstore.New(), "billing")
	earlier, _ := locks.Lock(ctx, "invoice/42")
	first := guard.Of(earlier)
	earlier.Unlock()
	lease, _ := locks.Lock(ctx, "invoice/42")
	defer lease.Unlock()
	fmt.Println(guard.Of(lease).Token > first.Token)
	// Output: true
}

// Where is it checked? First of all in the transaction that writes.
func ExampleSQL_Raise() {
	pay := func(ctx context.Context, db *sql.DB, lease *baton.Lease) error {
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() // does nothing after Commit
		if err := guard.Postgres.Raise(ctx, tx, "account/7", guard.Of(lease)); err != nil {
			return err // a *guard.StaleError: another holder was here
		}
		if _, err := tx.ExecContext(ctx, "UPDATE account SET points = points - 999 WHERE id = 7"); err != nil {
			return err
		}
		return tx.Commit()
	}
	_ = pay
}

// The resource has a row of its own: keep the token in it.
func ExampleOf_column() {
	pay := func(ctx context.Context, db *sql.DB, lease *baton.Lease) error {
		r, err := db.ExecContext(ctx, "UPDATE account SET points = points - 999, fence = $1 WHERE id = 7 AND fence <= $1", lease.Token())
		if err != nil {
			return err
		}
		if n, err := r.RowsAffected(); err != nil || n == 0 {
			return errors.Join(err, guard.ErrStale)
		}
		return nil
	}
	_ = pay
}

func ExampleRedis_Do() {
	save := func(ctx context.Context, client redis.UniversalClient, lease *baton.Lease) error {
		account := guard.Redis(func(ctx context.Context, script string, keys, args []string) (any, error) {
			plain := make([]any, len(args)) // go-redis needs []any
			for i, arg := range args {
				plain[i] = arg
			}
			return client.Eval(ctx, script, keys, plain...).Result()
		})
		_, err := account.Do(ctx, "account/7", guard.Of(lease), "HSET", "points", "1")
		return err
	}
	_ = save
}

func ExampleRedis_Do_rueidis() {
	save := func(ctx context.Context, client rueidis.Client, lease *baton.Lease) error {
		account := guard.Redis(func(ctx context.Context, script string, keys, args []string) (any, error) {
			eval := client.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()
			return client.Do(ctx, eval).ToAny()
		})
		_, err := account.Do(ctx, "account/7", guard.Of(lease), "HSET", "points", "1")
		return err
	}
	_ = save
}

// The client sends the token of its lease, and the service refuses a lower one
// after a higher one.
func ExampleHTTP() {
	byPath := func(r *http.Request) string { return r.URL.Path }
	accounts := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// With several servers: check guard.From(r.Context()) again, in the
		// transaction.
	})
	server := httptest.NewServer(guard.HTTP(new(guard.Gate), byPath)(accounts))
	defer server.Close()

	client := http.Client{Transport: new(guard.Transport)}
	put := func(ctx context.Context, lease *baton.Lease) error {
		req, err := http.NewRequestWithContext(guard.With(ctx, guard.Of(lease)), http.MethodPut, server.URL+"/account/7", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		fmt.Println(resp.Status)
		return guard.Refused(resp)
	}

	ctx, store := context.Background(), memstore.New()
	slept, awake := program(store, "slept"), program(store, "awake")
	lease, _ := slept.Lock(ctx, "account/7")
	awake.Break(ctx, "account/7")
	next, _ := awake.Lock(ctx, "account/7")
	fmt.Println(put(ctx, next))
	fmt.Println(errors.Is(put(ctx, lease), guard.ErrStale))
	// Output:
	// 200 OK
	// <nil>
	// 412 Precondition Failed
	// true
}

// What if I cannot change the resource? Let all writes go through one process with
// a Gate: no write begins before those of earlier holders have ended.
func ExampleGate_Do() {
	var printers guard.Gate // it remembers until the process ends; Marks can be kept elsewhere
	show := func(ctx context.Context, lease *baton.Lease, page []byte) error {
		return printers.Do(ctx, "printer/1", guard.Of(lease), func() error {
			return os.WriteFile("/dev/usb/lp1", page, 0) // the device does not know tokens
		})
	}
	_ = show
}

func ExampleObserve() {
	stop := guard.Observe(guard.Events{Refused: func(_ context.Context, e guard.RefusedEvent) {
		fmt.Printf("%s: token %d after %d (%s)\n", e.Err.Resource, e.Err.Token, e.Err.Last, e.Store)
	}})
	defer stop()
	var marks guard.Memory
	ctx := context.Background()
	fmt.Println(marks.Raise(ctx, "robot", guard.Pass{Token: 128}))
	fmt.Println(errors.Is(marks.Raise(ctx, "robot", guard.Pass{Token: 64}), guard.ErrStale))
	// Output:
	// <nil>
	// robot: token 64 after 128 (memory)
	// true
}

func ExampleWriteFile() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "guard")
	if err != nil {
		slog.Error(err.Error())
		return
	}
	defer os.RemoveAll(dir)
	locks := program(memstore.New(), "reporter")
	lease, _ := locks.Lock(ctx, "report")
	defer lease.Unlock()
	path, data := filepath.Join(dir, "report.txt"), []byte("all is well\n")
	err = guard.WriteFile(ctx, path, data, 0o644, guard.Of(lease))
	text, _ := os.ReadFile(path)
	fmt.Printf("%s%v\n", text, err)
	// Output:
	// all is well
	// <nil>
}
