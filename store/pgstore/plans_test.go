package pgstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/sqltext"
)

// crowded is how many rows each table has, and fewRows how many of them a statement
// may read.
const (
	crowded = 50_000
	fewRows = 1000
)

// Every statement that the store sends, and every one in the functions that it
// calls, runs beside many rows, and the server tells its plan and what it read. None
// reads much. A statement that is new in the source has to run
// here, too.
func TestNoStatementScans(t *testing.T) {
	t.Parallel()
	_, url := database(t)
	plain := openAt(t, url)
	for _, fill := range []string{
		`INSERT INTO baton_lock SELECT convert_to('row' || lpad(i::text, 7, '0'), 'UTF8'), i, 1, i % 2 = 0, 'i', i, 1, 'o', 'n', now(), now() + interval '1 day' FROM generate_series(1, $1::int) AS i`,
		`INSERT INTO baton_claim SELECT convert_to('row' || lpad(i::text, 7, '0'), 'UTF8'), i, 'i', 'n', 'o', 1, 1::bigint << 40, true, 1000000, now(), now() + interval '1 day' FROM generate_series(1, $1::int) AS i`,
		`INSERT INTO baton_limit SELECT convert_to('row' || lpad(i::text, 7, '0'), 'UTF8'), '3 4000000000000000 0 1 1 1', now() + interval '1 day' FROM generate_series(1, $1::int) AS i`,
		`INSERT INTO baton_limit_id SELECT convert_to('row' || lpad(i::text, 7, '0'), 'UTF8'), 'i', 1, 0, now() + interval '1 day' FROM generate_series(1, $1::int) AS i`,
		`INSERT INTO baton_kept SELECT convert_to('records/row' || lpad(i::text, 7, '0'), 'UTF8'), convert_to('{"state":"begun","token":"1"}', 'UTF8'), now() + interval '1 day' FROM generate_series(1, $1::int) AS i`,
	} {
		exec(t, plain, fill, crowded)
	}
	exec(t, plain, `INSERT INTO baton_kept SELECT convert_to('overrides/row' || lpad(i::text, 7, '0'), 'UTF8'), convert_to('{"n":1,"period":"0s","until":"2100-01-01T00:00:00Z"}', 'UTF8'), now() + interval '1 day' FROM generate_series(1, $1::int) AS i`,
		limits.MaxOverrides-10) // there are never more
	exec(t, plain, `VACUUM ANALYZE baton_lock, baton_claim, baton_limit, baton_limit_id, baton_kept`)

	var ran plans
	for _, settings := range []func(*pgxpool.Config){func(*pgxpool.Config) {}, likeOpen} {
		s := openOn(t, newPool(t, url, settings, ran.listen), func(o *options) { o.sweep, o.idle = time.Hour, time.Minute })
		doEverything(t, s, plain)
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	}

	source, err := sqltext.InGo(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	source = append(source, inFunctions(t)...)
	if len(source) < 60 {
		t.Errorf("the source has but %d statements", len(source))
	}
	for _, x := range sqltext.Missing(source, slices.Collect(maps.Keys(ran.read))) {
		t.Errorf("%s: doEverything does not have this run: %s", x.At, x.SQL)
	}
	for text, n := range ran.read {
		if n > fewRows {
			t.Errorf("%v rows are read by\n%s", n, text)
		}
	}
	t.Logf("%d statements ran, of %d in the source", len(ran.read), len(source))

	// The test itself: this is how a scan looks.
	pool := newPool(t, url, ran.listen)
	const scan = `UPDATE baton_claim SET ttl = ttl WHERE id = 'nobody'`
	if _, err := pool.Exec(t.Context(), scan); err != nil {
		t.Fatal(err)
	}
	if n := ran.read[scan]; n < crowded {
		t.Errorf("a scan is not seen: it reads %v rows", n)
	}
}

// plans is what the server tells of the statements that ran: the most rows that a
// step of each read.
type plans struct {
	mu   sync.Mutex
	read map[string]float64
}

// listen makes the server tell its plans.
func (p *plans) listen(c *pgxpool.Config) {
	for name, value := range map[string]string{
		"session_preload_libraries": "auto_explain", "client_min_messages": "notice", "auto_explain.log_level": "notice",
		"auto_explain.log_min_duration": "0", "auto_explain.log_nested_statements": "on", "auto_explain.log_analyze": "on",
		"auto_explain.log_timing": "off", "auto_explain.log_format": "json",
	} {
		c.ConnConfig.RuntimeParams[name] = value
	}
	c.ConnConfig.OnNotice = func(_ *pgconn.PgConn, n *pgconn.Notice) {
		_, text, ok := strings.Cut(n.Message, "plan:\n")
		var told struct {
			Query string `json:"Query Text"`
			Plan  node
		}
		if !ok || json.Unmarshal([]byte(text), &told) != nil {
			return
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.read == nil {
			p.read = make(map[string]float64)
		}
		line := sqltext.Line(told.Query)
		p.read[line] = max(p.read[line], told.Plan.most())
	}
}

// node is a step of a plan.
type node struct {
	Relation string  `json:"Relation Name"`
	Rows     float64 `json:"Actual Rows"`
	Loops    float64 `json:"Actual Loops"`
	Filtered float64 `json:"Rows Removed by Filter"`
	Plans    []node
}

func (n node) most() (rows float64) {
	if n.Relation != "" {
		rows = (n.Rows + n.Filtered) * n.Loops
	}
	for _, below := range n.Plans {
		rows = max(rows, below.most())
	}
	return rows
}

var (
	function  = regexp.MustCompile(`(?s)CREATE OR REPLACE FUNCTION (baton_\w+)\(.*?\$\$(.*?)\$\$`)
	comment   = regexp.MustCompile(`--[^\n]*`)
	named     = regexp.MustCompile(`baton_\w+_\d+`)
	ofTable   = regexp.MustCompile(`\b(FROM|INTO|UPDATE|JOIN) baton_(lock|claim|limit|limit_id|record|override)\b`)
	variables = regexp.MustCompile(` INTO [a-z_]+\b`)
	ends      = regexp.MustCompile(`;|\bLOOP\b|\bTHEN\b`)
)

// inFunctions lists the statements of those functions that this program calls, each
// from where it names a table to where the language of the functions begins again.
func inFunctions(t *testing.T) (all []sqltext.Text) {
	bodies := make(map[string]string)
	for _, f := range function.FindAllStringSubmatch(comment.ReplaceAllString(Schema(), ""), -1) {
		bodies[f[1]] = f[2]
	}
	files, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	called := make(map[string]bool)
	var call func(text string)
	call = func(text string) {
		for _, name := range named.FindAllString(text, -1) {
			if !called[name] {
				called[name] = true
				call(bodies[name])
			}
		}
	}
	for _, f := range files {
		if name := f.Name(); strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go") {
			source, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			call(string(source))
		}
	}
	for name := range called {
		for _, part := range ends.Split(bodies[name], -1) {
			part = sqltext.Line(part)
			at := ofTable.FindStringIndex(part)
			if at == nil {
				continue
			}
			part = part[at[0]:]
			for _, v := range variables.FindAllStringIndex(part, -1) {
				if !strings.HasPrefix(part[v[0]:], " INTO baton_") {
					part = part[:v[0]]
					break
				}
			}
			all = append(all, sqltext.Text{At: name, SQL: part})
		}
	}
	return all
}

// doEverything makes a store run each of its statements.
func doEverything(t *testing.T, s, other *Store) {
	t.Helper()
	ctx := t.Context()
	name := fmt.Sprintf("direct %v ", s.direct)
	reader := func(key string) driver.Request {
		r := writer(name + key)
		r.Weight = 1
		return r
	}
	again := func(r driver.Request) {
		r.Retry = true
		if _, err := s.Acquire(ctx, r); err != nil {
			t.Errorf("%q again: %v", r.Key, err)
		}
	}
	unknown := func(c driver.Claim) driver.Claim {
		c.Ticket = 0
		return c
	}
	alive := func(key string) { // however slow the machine is
		exec(t, other, `UPDATE baton_claim SET ends = clock_timestamp() + interval '1 hour' WHERE k = $1`, []byte(name+key))
	}
	expire := func(key string) {
		exec(t, other, `UPDATE baton_claim SET ends = clock_timestamp() WHERE k = $1`, []byte(name+key))
		exec(t, other, `UPDATE baton_lock SET ends = clock_timestamp() WHERE k = $1`, []byte(name+key))
	}

	// A holder and waiters.
	w := writer(name + "k")
	h := hold(t, s, w)
	again(w)
	mustBe(t, s, h, driver.Held)
	mustRefuse(t, s, h.Key)
	first := writer(name + "k")
	a := join(t, s, first)
	again(queued(first))
	again(w)
	b := join(t, s, writer(name+"k"))
	bounded := queued(writer(name + "k"))
	bounded.MaxWaiting = 2
	if _, err := s.Acquire(ctx, bounded); !errors.Is(err, driver.ErrQueueFull) {
		t.Errorf("behind two waiters, of at most two: %v, want driver.ErrQueueFull", err)
	}
	stop := s.Watch(a, func(driver.Hint) {})
	mustBe(t, s, a, driver.Waiting)
	mustBe(t, s, unknown(a), driver.Waiting)
	mustRefuse(t, s, h.Key)
	s.hints.pollOnce()
	alive("k")
	release(t, s, h)
	alive("k")
	mustBe(t, s, a, driver.Held)
	s.hints.pollOnce()
	stop()
	alive("k")
	release(t, s, unknown(a))
	alive("k")
	mustBe(t, s, b, driver.Held)
	release(t, s, b)
	h = hold(t, s, writer(name+"k"))
	locked := begin(t, other, pgx.ReadCommitted)
	if _, err := locked.Exec(ctx, `SELECT FROM baton_lock WHERE k = $1 FOR UPDATE`, []byte(h.Key)); err != nil {
		t.Fatal(err)
	}
	renewed := make(chan driver.Renewal, 1)
	go func() { renewed <- s.Renew(context.Background(), []driver.Claim{h}, time.Minute)[0] }()
	awaitBlocked(t, other, 1)
	if err := locked.Commit(ctx); err != nil {
		t.Fatal(err)
	}
	if r := <-renewed; r.State != driver.Held {
		t.Errorf("renewed: %+v", r)
	}
	a = join(t, s, writer(name+"k"))
	alive("k")
	exec(t, other, `UPDATE baton_lock SET ends = clock_timestamp() WHERE k = $1`, []byte(h.Key))
	mustBe(t, s, a, driver.Held)
	release(t, s, a)
	old := writer(name + "expired")
	hold(t, s, old)
	expire("expired")
	next := hold(t, s, writer(old.Key))
	join(t, s, writer(old.Key))
	dead := join(t, s, writer(old.Key))
	exec(t, other, `UPDATE baton_claim SET ends = clock_timestamp() WHERE k = $1`, []byte(old.Key))
	again(queued(driver.Request{Claim: dead, TTL: time.Minute}))
	_ = s.Release(ctx, dead)
	release(t, s, next)

	// Claims that share, and what transactions depend on.
	r := reader("r")
	r1 := hold(t, s, r)
	again(r)
	r2 := hold(t, s, reader("r"))
	mustBe(t, s, r2, driver.Held)
	join(t, s, writer(name+"r"))
	for _, c := range []driver.Claim{r1, hold(t, s, writer(name+"tx"))} {
		tx := begin(t, s, pgx.ReadCommitted)
		if err := s.InTx(ctx, tx, leased(c)); err != nil {
			t.Error(err)
		}
		release(t, s, c)
		if err := tx.Commit(ctx); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Move(ctx, r2, driver.NewID(), "heir", time.Minute); err != nil {
		t.Error(err)
	}
	for _, c := range []driver.Claim{hold(t, s, reader("renamed")), hold(t, s, writer(name+"renamed too"))} {
		for _, c := range []driver.Claim{c, unknown(c)} {
			if err := s.Rename(ctx, c, "renamed"); err != nil {
				t.Error(err)
			}
		}
	}
	queue := hold(t, s, writer(name+"down"))
	out := join(t, s, writer(name+"down"))
	alive("down")
	release(t, s, queue)
	alive("down")
	mustBe(t, s, out, driver.Held)
	for _, c := range []driver.Claim{out, hold(t, s, writer(name+"down too"))} {
		if _, err := s.Downgrade(ctx, c, time.Minute); err != nil {
			t.Error(err)
		}
	}
	if _, err := s.Move(ctx, hold(t, s, writer(name+"move")), driver.NewID(), "heir", time.Minute); err != nil {
		t.Error(err)
	}
	for _, key := range []string{"r", "move"} {
		if _, err := s.Inspect(ctx, name+key); err != nil {
			t.Error(err)
		}
		if _, err := s.Break(ctx, name+key); err != nil {
			t.Error(err)
		}
	}
	for _, prefix := range []string{"", "row00000"} {
		n := 0
		for _, err := range s.List(ctx, prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > 2*listPage {
				break
			}
		}
	}

	// Several at once, and many.
	for range 2 {
		for _, c := range holdAll(t, s, writers(name+"t1", name+"t2")...) {
			release(t, s, c)
		}
	}
	some := writers(name+"t1", name+"down")
	for i := range some {
		some[i].Retry = true
	}
	if _, err := s.AcquireAll(ctx, some); err == nil {
		t.Error("several were granted beside a holder")
	}
	onConn(t, s, func(conn *pgxpool.Conn) error {
		var all []*operation
		for i, key := range []string{"m1", "m2", "t1"} {
			all = append(all, &operation{claim: writer(name + key).Claim, ttl: time.Minute}, &operation{claim: writer(name + key).Claim})
			if i == 2 {
				all = append(all, &operation{claim: hold(t, other, writer(name+"m3"))})
			}
		}
		return s.batcher.sendLocks(ctx, conn, all)
	})
	held, position := hold(t, s, writer(name+"key")), join(t, s, writer(name+"key"))
	onConn(t, s, func(conn *pgxpool.Conn) error {
		return s.batcher.sendKey(ctx, conn, []*operation{
			{claim: held}, {claim: position}, {claim: unknown(position)}, {claim: writer(held.Key).Claim, ttl: time.Minute, queue: true},
		})
	})

	// Limits and records.
	for _, l := range []limits.Limit{window(5), bucket(5), {Algorithm: limits.SlidingLog, N: 5, Period: time.Hour}} {
		key := fmt.Sprint(name, l.Algorithm, l.Parts)
		for _, cost := range []int64{0, 1, 1, 5, 5} {
			q := take(l, cost, key)
			mustTake(t, s, q)
			mustTake(t, s, withID(q))
			q.Takes = append(q.Takes, limits.Take{Key: key + " too", Limit: l, Cost: min(cost, 1)})
			mustTake(t, s, q)
		}
		for range 2 {
			q := take(l, 0, key)
			q.Mode = limits.Forget
			mustTake(t, s, q)
			q.Takes = append(q.Takes, limits.Take{Key: key + " too", Limit: l})
			mustTake(t, s, q)
		}
	}
	beginRecord(t, s, name+"k", 1)
	beginRecord(t, s, name+"k", 1)
	beginRecord(t, s, name+"k", 2)
	exec(t, other, `UPDATE baton_kept SET until = clock_timestamp() WHERE key = $1`, []byte("records/"+name+"k"))
	beginRecord(t, s, name+"k", 3)
	finishRecord(t, s, name+"k", 3, "done")
	if _, err := s.FindRecord(ctx, name+"k"); err != nil {
		t.Error(err)
	}
	for prefix, want := range map[string]int{"": 2*listPage + 1, "row00000": 99, "row9": 0} {
		n := 0
		for _, err := range s.ListRecords(ctx, prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > 2*listPage {
				break
			}
		}
		if n != want {
			t.Errorf("of %q %d records are listed, want %d", prefix, n, want)
		}
	}
	for prefix, want := range map[string]int{"": 2*listPage + 1, "row00001": 100, "row9": 0} { // the sweep removes some of the first
		n := 0
		for _, err := range s.ListStates(ctx, prefix, "row") {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > 2*listPage {
				break
			}
		}
		if n != want {
			t.Errorf("of %q %d limits are listed, want %d", prefix, n, want)
		}
	}
	if err := s.ForgetRecord(ctx, name+"k"); err != nil {
		t.Error(err)
	}

	for _, keep := range []time.Duration{time.Hour, time.Hour, 0} {
		if err := s.SetOverride(ctx, limits.Override{Key: name + "k", N: 1}, keep); err != nil {
			t.Error(err)
		}
	}
	if all, err := s.Overrides(ctx); err != nil || len(all) != limits.MaxOverrides-10 {
		t.Errorf("%d overrides, %v", len(all), err)
	}

	// The sweeps.
	exec(t, other, `UPDATE baton_lock SET last = 1, ends = '2020-01-01' WHERE k BETWEEN 'row0000001' AND 'row0000005'`)
	exec(t, other, `UPDATE baton_limit SET expires = '2020-01-01' WHERE key BETWEEN 'row0000001' AND 'row0000005'`)
	if _, _, err := s.sweep.page([]byte("row"), 10); err != nil {
		t.Error(err)
	}
	var upto []byte
	var removed int
	if err := s.row(ctx, sweepLimitsSQL, []any{[]byte("row"), int32(10)}, &upto, &removed); err != nil {
		t.Error(err)
	}
}

// onConn sends what waits for a connection otherwise.
func onConn(t *testing.T, s *Store, send func(*pgxpool.Conn) error) {
	t.Helper()
	conn, err := s.pool.Acquire(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if err := send(conn); err != nil {
		t.Error(err)
	}
}
