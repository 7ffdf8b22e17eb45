package open_test

import (
	"database/sql"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit"
)

// An override costs no further round trip: the server counts as many requests for the
// decisions of an Overridable Limiter as for those of one that is not, but for one look a
// second at all overrides.
func TestOverridesCostNoRequests(t *testing.T) {
	t.Parallel()
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		server := testserver.Redis(t)
		overridesCostNoRequests(t, "redis://"+server.Addr, func() int {
			info, err := server.Do("INFO", "commandstats")
			if err != nil {
				t.Fatal(err)
			}
			n := 0
			for _, m := range regexp.MustCompile(`cmdstat_(evalsha|eval|hgetall):calls=(\d+)`).FindAllStringSubmatch(info, -1) {
				n += number(t, m[2])
			}
			return n
		})
	})
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		server := testserver.Postgres(t, "-c", "shared_preload_libraries=pg_stat_statements")
		database := server.Database(t)
		query := func(q string) string {
			out, err := server.Query(database, q)
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(out)
		}
		query("CREATE EXTENSION pg_stat_statements")
		overridesCostNoRequests(t, server.URL(database), func() int {
			return number(t, query("SELECT sum(calls) FROM pg_stat_statements WHERE query ILIKE '%baton%'"))
		})
	})
	t.Run("mariadb", func(t *testing.T) {
		t.Parallel()
		server := testserver.MariaDB(t)
		db, err := sql.Open("mysql", "root@tcp("+server.Addr+")/baton")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		overridesCostNoRequests(t, "mariadb://root@"+server.Addr+"/baton", func() int {
			var name, n string
			if err := db.QueryRowContext(t.Context(), "SHOW GLOBAL STATUS LIKE 'Questions'").Scan(&name, &n); err != nil {
				t.Fatal(err)
			}
			return number(t, n)
		})
	})
}

func overridesCostNoRequests(t *testing.T, url string, requests func() int) {
	store, err := open.Limits(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const decisions = 1000
	count := func(opts ...ratelimit.Option) (counted int, took time.Duration) {
		l, err := ratelimit.New(store, ratelimit.SlidingWindow(1_000_000, time.Hour), opts...)
		if err != nil {
			t.Fatal(err)
		}
		var want int64 = 1_000_000
		if opts != nil {
			want = 2_000_000
			if err := l.SetOverride(t.Context(), "k", ratelimit.Override{N: want}, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		allow := func() {
			r, err := l.Allow(t.Context(), "k")
			if err != nil || !r.OK || r.Limit != want {
				t.Fatalf("%+v, %v, want a limit of %d", r, err, want)
			}
		}
		allow() // what the first one costs besides: scripts and statements are made known
		before, start := requests(), time.Now()
		for range decisions {
			allow()
		}
		return requests() - before, time.Since(start)
	}
	plain, _ := count()
	overridden, took := count(ratelimit.Overridable())
	what := fmt.Sprintf("%d decisions: the server counted %d requests; with an override %d, in %v", decisions, plain, overridden, took)
	t.Log(what)
	if plain < decisions || overridden < decisions {
		t.Error(what + ": not all were counted")
	}
	// One more for each would be twice this. A look each second is some requests, and a store
	// sweeps now and then.
	if overridden > plain+decisions/2 {
		t.Error(what)
	}
}

func number(t *testing.T, s string) int {
	t.Helper()
	n, err := strconv.Atoi(s)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
