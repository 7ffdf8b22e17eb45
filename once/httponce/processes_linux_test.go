package httponce_test

import (
	"bufio"
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/httponce"
	"github.com/batonhq/baton/store/sqlitestore"
)

// TestMain also runs the servers of TestProcessDies.
func TestMain(m *testing.M) {
	if path := os.Getenv("HTTPONCE_SHOP"); path != "" {
		if err := shop(path, os.Getenv("HTTPONCE_HANGS") != ""); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// shop serves payments that are rows beside the locks. One that hangs never answers, when
// it has committed.
func shop(path string, hangs bool) error {
	ctx := context.Background()
	store, err := sqlitestore.Open(ctx, path)
	if err != nil {
		return err
	}
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)")
	if err != nil {
		return err
	}
	ops, err := once.New(store, once.Config{Lock: baton.Config{TTL: 2 * time.Second}})
	if err != nil {
		return err
	}
	idempotent, err := httponce.New(ops, httponce.Config{Scope: byUser, Required: true, Wait: 5 * time.Second})
	if err != nil {
		return err
	}
	pay := func(w http.ResponseWriter, r *http.Request) error {
		a, _ := httponce.AttemptOf(r.Context())
		tx, err := db.BeginTx(r.Context(), nil)
		if err != nil {
			return err
		}
		defer tx.Rollback()
		if err := store.InTx(r.Context(), tx, a.Lease); err != nil {
			return err
		}
		if _, err := tx.Exec(`INSERT INTO paid VALUES (?, ?) ON CONFLICT DO NOTHING`, a.Key, a.Token); err != nil {
			return err
		}
		var token int64
		if err := tx.QueryRow(`SELECT token FROM paid WHERE op = ?`, a.Key).Scan(&token); err != nil {
			return err
		}
		if err := tx.Commit(); err != nil {
			return err
		}
		if hangs {
			fmt.Println("committed")
			select {}
		}
		fmt.Fprintf(w, "payment %d", token)
		return nil
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	fmt.Println("http://" + l.Addr().String())
	return http.Serve(l, idempotent(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := pay(w, r); err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError) // is not recorded
		}
	})))
}

// TestProcessDies: a thousand requests with one key go to two processes. The first one that
// runs commits its effect and dies before its answer is recorded. There is one effect, and
// all others get one answer.
func TestProcessDies(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "shop.db")
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(5000)&_pragma=journal_mode(WAL)")
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec(`CREATE TABLE paid (op TEXT PRIMARY KEY, token INTEGER NOT NULL)`); err != nil {
		t.Fatal(err)
	}
	start := func(hangs string) (*exec.Cmd, string, *bufio.Scanner) {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "HTTPONCE_SHOP="+path, "HTTPONCE_HANGS="+hangs)
		cmd.Stderr = t.Output()
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		lines := bufio.NewScanner(out)
		if !lines.Scan() {
			t.Fatal("the server does not start")
		}
		return cmd, lines.Text(), lines
	}
	dies, doomed, lines := start("yes")
	_, lives, _ := start("")

	ask := func(url string) (got, error) {
		return (&site{t: t, url: url}).try(t.Context(), "POST", "/pay", "5 euros", "Idempotency-Key", "k")
	}
	go func() { _, _ = ask(doomed) }()
	if !lines.Scan() || lines.Text() != "committed" {
		t.Fatalf("the first process says %q", lines.Text())
	}
	const requests = 1000
	answers := make([]got, requests)
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			url := []string{doomed, lives}[i%2]
			for end := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
				a, err := ask(url)
				if err == nil && a.status == http.StatusOK {
					answers[i] = a
					return
				}
				if err == nil && a.status != http.StatusConflict && a.status != http.StatusServiceUnavailable {
					t.Errorf("%d %q", a.status, a.body)
					return
				}
				if time.Now().After(end) {
					t.Errorf("no answer: %+v, %v", a, err)
					return
				}
				url = lives // a client tries another server
			}
		})
	}
	time.Sleep(100 * time.Millisecond) // so that many are under way
	if err := dies.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	all.Wait()
	var effects int
	var token int64
	if err := db.QueryRow(`SELECT count(*), max(token) FROM paid`).Scan(&effects, &token); err != nil {
		t.Fatal(err)
	}
	firsts := 0
	for _, a := range answers {
		if a.body != fmt.Sprint("payment ", token) {
			t.Errorf("%+v", a)
		}
		if !a.replayed {
			firsts++
		}
	}
	if effects != 1 || firsts != 1 {
		t.Errorf("%d effects, %d answers that say they are the first", effects, firsts)
	}
	if keys := recorded(t, path); !slices.Equal(keys, []string{"http/eve/k"}) {
		t.Errorf("recorded are %q", keys)
	}
}

// recorded lists the keys of what is recorded.
func recorded(t *testing.T, path string) (keys []string) {
	t.Helper()
	store, err := sqlitestore.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	ops, err := once.New(store, once.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for rec, err := range ops.List(t.Context(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, rec.Key)
	}
	return keys
}
