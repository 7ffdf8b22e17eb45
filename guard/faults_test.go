package guard_test

import (
	"context"
	"crypto/rand"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// A faulty is a guarded resource behind a connection that can be cut. write goes
// through the connection, direct does not.
type faulty struct {
	proxy         *faultproxy.Proxy
	write, direct func(ctx context.Context, token int64) error
	history       func(ctx context.Context) ([]int64, error)
}

// losesAnswers makes each request of a write lose its answer, or never arrive.
// After that the mark and the write are both there, or neither is; no writer has to
// wait, and the writer can begin again.
func losesAnswers(t *testing.T, f *faulty) {
	ctx := t.Context()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	token := int64(10)
	must("the first", f.write(ctx, token))
	done, undone := 0, 0
	for name, cut := range map[string]func(*faultproxy.Proxy, func([]byte) bool) <-chan struct{}{
		"after":  (*faultproxy.Proxy).CutAfterRequest,
		"before": (*faultproxy.Proxy).CutBeforeRequest,
	} {
		for nth := 1; nth < 20; nth++ {
			step, n := fmt.Sprint(name, " ", nth), nth
			token += 10
			var caught atomic.Bool
			cut(f.proxy, func([]byte) bool {
				if n--; n == 0 {
					caught.Store(true)
				}
				return n == 0
			})
			err := f.write(ctx, token)
			f.proxy.Heal()
			if !caught.Load() { // the write has fewer requests
				must(step, err)
				break
			}
			if err == nil { // the client has asked again
				continue
			}
			h, histErr := f.history(ctx)
			must(step, histErr)
			// A lower token is refused, if that was written.
			if err = f.direct(ctx, token-5); slices.Contains(h, token) {
				done++
				if !errors.Is(err, guard.ErrStale) {
					t.Errorf("%s: it was written, and a lower token got %v", step, err)
				}
			} else {
				undone++
				must(step+": it was not written, and a lower token", err)
			}
			for err = f.write(ctx, token); err != nil && !errors.Is(err, guard.ErrStale); { // the client connects again
				err = f.write(ctx, token)
			}
			must(step+": again", err)
			must(step+": the next", f.direct(ctx, token+1))
		}
	}
	if done == 0 || undone == 0 {
		t.Errorf("%d writes took effect without an answer, and %d did not", done, undone)
	}
	h, err := f.history(ctx)
	if err != nil || !slices.IsSorted(h) {
		t.Errorf("the tokens that wrote: %v, %v", h, err)
	}
}

func TestSQLLosesAnswers(t *testing.T) {
	t.Parallel()
	for name, open := range map[string]func(t *testing.T) (guard.SQL, *sql.DB, *sql.DB, *faultproxy.Proxy){
		"postgres": func(t *testing.T) (guard.SQL, *sql.DB, *sql.DB, *faultproxy.Proxy) {
			url, addr := postgresURL(t), testserver.SharedPostgres(t).Addr
			p := faultproxy.New(t, addr)
			return guard.Postgres, openDB(t, "pgx", url), openDB(t, "pgx", strings.Replace(url, addr, p.Addr, 1)), p
		},
		"mysql": func(t *testing.T) (guard.SQL, *sql.DB, *sql.DB, *faultproxy.Proxy) {
			db := mysqlDB(t)
			p := faultproxy.New(t, testserver.SharedMariaDB(t).Addr)
			name := ""
			if err := db.QueryRow("SELECT DATABASE()").Scan(&name); err != nil {
				t.Fatal(err)
			}
			cfg, err := mysql.ParseDSN("root@tcp(" + p.Addr + ")/" + name + "?interpolateParams=true") // one request for each statement
			if err != nil {
				t.Fatal(err)
			}
			cfg.Logger = new(mysql.NopLogger)
			connector, err := mysql.NewConnector(cfg)
			if err != nil {
				t.Fatal(err)
			}
			through := sql.OpenDB(connector)
			t.Cleanup(func() { through.Close() })
			return guard.MySQL, db, through, p
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, direct, through, proxy := open(t)
			a := newAccount(t, s, direct, sql.LevelDefault)
			b := *a
			b.db = through
			by := func(a *account) func(context.Context, int64) error {
				return func(ctx context.Context, token int64) error { return a.write(ctx, guard.Pass{Token: token}, func() {}) }
			}
			losesAnswers(t, &faulty{proxy: proxy, write: by(&b), direct: by(a), history: a.history})

			// The process dies in the middle of its transaction: no writer waits
			// for it.
			if err := b.write(t.Context(), guard.Pass{Token: 1e6}, proxy.Cut); err == nil {
				t.Error("it was cut off and has written")
			}
			if err := a.write(t.Context(), guard.Pass{Token: 1e6 - 1}, func() {}); err != nil {
				t.Errorf("after one that died before its commit: %v", err)
			}
		})
	}
}

func TestRedisLosesAnswers(t *testing.T) {
	t.Parallel()
	addr := testserver.SharedRedis(t).Addr
	proxy := faultproxy.New(t, addr)
	key := rand.Text()
	direct := redis.NewClient(&redis.Options{Addr: addr})
	through := redis.NewClient(&redis.Options{Addr: proxy.Addr, MaxRetries: -1})
	t.Cleanup(func() { direct.Close(); through.Close() })
	by := func(c redis.UniversalClient) func(context.Context, int64) error {
		return func(ctx context.Context, token int64) error {
			_, err := byGoRedis(c).Do(ctx, key, guard.Pass{Token: token}, "RPUSH", fmt.Sprint(token))
			return err
		}
	}
	losesAnswers(t, &faulty{proxy: proxy, write: by(through), direct: by(direct), history: func(ctx context.Context) (h []int64, err error) {
		err = direct.LRange(ctx, key, 0, -1).ScanSlice(&h)
		return h, err
	}})
}

// The answer to a request is lost after the handler has run: the same token may ask
// again, and a lower one is refused.
func TestHTTPLosesAnswers(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var written []int64
	server := httptest.NewServer(guard.HTTP(new(guard.Gate), func(*http.Request) string { return "r" })(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p, _ := guard.From(r.Context())
		mu.Lock()
		defer mu.Unlock()
		written = append(written, p.Token)
	})))
	t.Cleanup(server.Close)
	at, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := faultproxy.New(t, at.Host)
	by := func(host string) func(context.Context, int64) error {
		client := &http.Client{Transport: &guard.Transport{Base: &http.Transport{}}}
		t.Cleanup(client.CloseIdleConnections)
		return func(ctx context.Context, token int64) error {
			r, err := http.NewRequestWithContext(guard.With(ctx, guard.Pass{Token: token}), http.MethodPost, "http://"+host, nil)
			if err != nil {
				return err
			}
			answer, err := client.Do(r)
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			switch answer.StatusCode {
			case http.StatusOK:
				return nil
			case http.StatusPreconditionFailed:
				return guard.ErrStale
			}
			return errors.New(answer.Status)
		}
	}
	losesAnswers(t, &faulty{proxy: proxy, write: by(proxy.Addr), direct: by(at.Host), history: func(context.Context) ([]int64, error) {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(written), nil
	}})
}
