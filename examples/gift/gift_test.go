//go:build unix

package main

import (
	"database/sql"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/sqlitestore"
)

// The page shows both files.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/tutorials/points.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := pagecode.Blocks(string(page), "go")
	for _, file := range []string{"main.go", "redeem.go"} {
		if text, err := os.ReadFile(file); err != nil || !slices.Contains(blocks, string(text)) {
			t.Errorf("docs/tutorials/points.md does not show %s: %v", file, err)
		}
	}
}

// An order that many processes send is redeemed once, and one that is refused stays refused.
// An attempt whose record is lost, or whose lease has ended, takes nothing.
func TestOrders(t *testing.T) {
	t.Parallel()
	ctx, dir := t.Context(), t.TempDir()
	program := filepath.Join(dir, "gift")
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	send := func(order string) (string, error) {
		cmd := exec.CommandContext(ctx, program, order)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	redeemed := func(order string) {
		t.Helper()
		if out, err := send(order); err != nil || out != "one gift for the order "+order+"\n" {
			t.Errorf("%s: %v, %q", order, err, out)
		}
	}
	var all sync.WaitGroup
	for range 9 {
		all.Go(func() { redeemed("A-1") })
	}
	all.Wait()

	path := filepath.Join(dir, "points.db")
	store, err := sqlitestore.Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	left := func(when string, want int) {
		t.Helper()
		var n int
		if err := db.QueryRowContext(ctx, "SELECT points FROM account WHERE id = 7").Scan(&n); err != nil || n != want {
			t.Errorf("%s %d points are left, want %d: %v", when, n, want, err)
		}
	}
	points := func(n int) {
		t.Helper()
		if _, err := db.ExecContext(ctx, "UPDATE account SET points = ? WHERE id = 7", n); err != nil {
			t.Fatal(err)
		}
	}
	left("after one order that was sent nine times", 1)

	for _, n := range []int{1, 1000} {
		points(n)
		if out, err := send("A-2"); err == nil || !strings.Contains(out, `"redeem/A-2" has failed for good: not enough points`) {
			t.Errorf("a second order, with %d points: %v, %q", n, err, out)
		}
	}
	points(1)
	ops, err := once.New(store, once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// The record is lost, as in the crash of an attempt between its commit and its record.
	if err := ops.Forget(ctx, "redeem/A-1"); err != nil {
		t.Fatal(err)
	}
	redeemed("A-1")
	left("after the record was lost", 1)

	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	lease, err := locks.Lock(ctx, "account/7")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := locks.Break(ctx, "account/7"); err != nil {
		t.Fatal(err)
	}
	points(1000)
	if _, err := redeem(ctx, db, store, lease, "A-3"); !errors.Is(err, driver.ErrLost) && !errors.Is(err, baton.ErrLost) {
		t.Errorf("with a lease that has ended: %v", err)
	}
	left("after a lease that has ended", 1000)
}
