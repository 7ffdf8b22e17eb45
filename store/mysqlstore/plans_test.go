package mysqlstore

import (
	"fmt"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/sqltext"
	"github.com/batonhq/baton/internal/testserver"
)

// crowded is how many rows each table has, and fewRows how many of them a statement
// may read, as the server estimates it.
const (
	crowded = 200_000
	fewRows = 1000
)

// meantScans are parts of the statements that may read more, and why.
var meantScans = map[string]string{
	"FROM baton_lock FORCE INDEX (PRIMARY) WHERE k>":                 "the sweep reads a page, from where it ended",
	"FROM baton_limit FORCE INDEX (PRIMARY) WHERE k>":                "the sweep of limits reads a page",
	"FROM baton_limit_id WHERE ends<=UTC_TIMESTAMP(6) ORDER BY ends": "it reads as many of those that are over as it removes",
	"FROM baton_kept WHERE until<=UTC_TIMESTAMP(6) ORDER BY until":   "so does that of records",
	"FROM baton_limit WHERE k>":                                      "so does a person who lists all limits",
	"(busy=1 OR id<>'' AND ends>UTC_TIMESTAMP(6))":                   "a person lists keys: the rows of idle ones are between them",
}

// Every statement that the store sends is explained in tables with many rows, and only
// those that are meant to read all rows do. A statement that is new in the source has
// to be sent here, too.
func TestNoStatementScans(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := newDatabase(t, testserver.MariaDB(t, "--log-output=TABLE"))
	for _, fill := range []string{
		"INSERT INTO baton_lock (k,last,busy,token,weight,id,owner,since,ends) SELECT CONCAT('row',LPAD(seq,7,'0')),seq,seq%2,seq,1<<40,'i','o',UTC_TIMESTAMP(6),IF(seq%3,UTC_TIMESTAMP(6)+INTERVAL 1 DAY,'1970-01-01')",
		"INSERT INTO baton_claim (k,seq,id,owner,weight,cap,held,ttl,since,ends) SELECT CONCAT('row',LPAD(seq,7,'0')),seq,'i','o',1,1<<40,1,1000000,UTC_TIMESTAMP(6),UTC_TIMESTAMP(6)+INTERVAL 1 DAY",
		"INSERT INTO baton_limit (k,state,ends) SELECT CONCAT('row',LPAD(seq,7,'0')),'3 4000000000000000 0 1 1 1',UTC_TIMESTAMP(6)+INTERVAL 1 DAY-INTERVAL seq%2*2 DAY",
		"INSERT INTO baton_limit_id (k,id,at,wait,ends) SELECT CONCAT('row',LPAD(seq,7,'0')),'i',1,0,UTC_TIMESTAMP(6)+INTERVAL 1 DAY-INTERVAL seq%2*2 DAY",
		"INSERT INTO baton_kept (k,text,until) SELECT CONCAT('records/row',LPAD(seq,7,'0')),'{\"state\":\"begun\",\"token\":\"1\"}',UTC_TIMESTAMP(6)+INTERVAL 1 DAY-INTERVAL seq%2*2 DAY",
	} {
		d.exec(t, fill+" FROM "+numbers(crowded))
	}
	d.exec(t, "INSERT INTO baton_kept (k,text,until) SELECT CONCAT('overrides/row',LPAD(seq,7,'0')),'{\"n\":1,\"period\":\"0s\",\"until\":\"2100-01-01T00:00:00Z\"}',UTC_TIMESTAMP(6)+INTERVAL 1 DAY FROM "+
		numbers(limits.MaxOverrides-10)) // there are never more
	for _, table := range tables {
		rows, err := d.plain.Query("ANALYZE TABLE " + table)
		if err != nil {
			t.Fatal(err)
		}
		rows.Close()
	}
	d.exec(t, "SET GLOBAL general_log=ON")
	for _, s := range []*Store{d.openWith(t, sweeps), d.wrap(t, d.config())} {
		doEverything(t, d, s)
	}
	d.exec(t, "SET GLOBAL general_log=OFF")

	var all []string
	rows, err := d.plain.Query("SELECT argument FROM mysql.general_log WHERE command_type IN ('Query','Execute') AND argument LIKE '%baton\\_%'")
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var text string
		if err := rows.Scan(&text); err != nil {
			t.Fatal(err)
		}
		all = append(all, strings.Split(text, ";")...)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	source, err := sqltext.InGo(os.DirFS("."))
	if err != nil || len(source) < 20 {
		t.Fatalf("the source has %d statements, %v", len(source), err)
	}
	shapes := make(map[string]string)
	for _, text := range all {
		if shape := shapeOf(text); strings.Contains(text, "baton_") && !strings.HasPrefix(shape, "SET ") {
			shapes[shape] = text
		}
	}
	for i, x := range source {
		source[i].SQL = shapeOf(x.SQL)
	}
	for _, x := range sqltext.Missing(source, slices.Collect(maps.Keys(shapes))) {
		t.Errorf("%s: doEverything does not have this sent: %s", x.At, x.SQL)
	}
	read := make(map[string]string) // what is read, by the shape of the statement that reads much
	for shape, text := range shapes {
		if plan, most := d.explain(t, text); most > fewRows {
			read[shape] = fmt.Sprintf("about %d rows are read by\n%.600s\n%s", most, text, plan)
		}
	}
	meant := make(map[string]string)
	for part, why := range meantScans {
		meant[shapeOf(part)] = why
	}
	// These read many by one server's estimate of a prefix, and few by another's.
	pages := []string{shapeOf("FROM baton_kept WHERE k<"), shapeOf("FROM baton_limit WHERE k<")}
	for _, page := range pages {
		meant[page] = "a list reads a page"
	}
	unmeant, unused := sqltext.Unmeant(slices.Collect(maps.Keys(read)), meant)
	for _, shape := range unmeant {
		t.Error(read[shape])
	}
	for _, part := range unused {
		if testserver.IsMySQL(t) {
			break // it estimates only as many rows as the statement wants
		}
		if slices.Contains(pages, part) {
			continue
		}
		t.Errorf("no statement with %q reads many rows: it needs no exception", part)
	}
	t.Logf("%d statements of %d shapes, %d texts in the source", len(all), len(shapes), len(source))

	// The test itself: this is how a scan looks.
	if plan, most := d.explain(t, "UPDATE baton_claim SET ttl=ttl WHERE id='none'"); most <= fewRows {
		t.Errorf("a scan is not seen: %s", plan)
	}
}

var (
	hexText = regexp.MustCompile(`X'[0-9A-F]*'|x'[0-9a-f]*'|X'[0-9a-f]*'|'[^']*'`)
	figures = regexp.MustCompile(`\b\d+\b`)
	several = regexp.MustCompile(`(\([^()]*\)|\?)(,(\([^()]*\)|\?)){2,}`)
)

// shapeOf is a statement without what it is about. A list of one differs from a list
// of more.
func shapeOf(text string) string {
	if strings.Count(text, "'")%2 > 0 { // the beginning of a statement
		text = text[:strings.LastIndexByte(text, '\'')]
	}
	text = figures.ReplaceAllString(hexText.ReplaceAllString(sqltext.Line(text), "?"), "?")
	return several.ReplaceAllString(text, "$1,$1")
}

// explain returns the plan and the most rows that a step of it reads.
func (d *database) explain(t *testing.T, text string) (plan string, most int64) {
	t.Helper()
	explain := "EXPLAIN "
	if testserver.IsMySQL(t) {
		explain = "EXPLAIN FORMAT=TRADITIONAL " // else it is a tree
	}
	rows, err := d.plain.Query(explain + text)
	if err != nil {
		t.Fatalf("explain %.300s: %v", text, err)
	}
	defer rows.Close()
	columns, err := rows.Columns()
	if err != nil {
		t.Fatal(err)
	}
	at := slices.Index(columns, "rows")
	for rows.Next() {
		values, into := make([]*string, len(columns)), make([]any, len(columns))
		for i := range into {
			into[i] = &values[i]
		}
		if err := rows.Scan(into...); err != nil {
			t.Fatal(err)
		}
		for i, v := range values {
			if v != nil {
				plan += columns[i] + "=" + *v + " "
			}
		}
		plan += "\n"
		var n int64
		if values[at] != nil {
			if _, err := fmt.Sscan(*values[at], &n); err != nil {
				t.Fatal(err)
			}
		}
		most = max(most, n)
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return plan, most
}

// doEverything makes a store send each of its statements.
func doEverything(t *testing.T, d *database, s *Store) {
	t.Helper()
	ctx := t.Context()
	name := fmt.Sprintf("multi %v ", s.multi)
	ask := func(c driver.Claim, queue, retry bool) driver.Claim {
		g, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute, Queue: queue, Retry: retry})
		if err != nil && !queue {
			return c // refused, which is an answer, too
		}
		if err != nil {
			t.Fatalf("acquire %q: %v", c.Key, err)
		}
		c.Ticket = g.Ticket
		return c
	}
	reader := func(key string) driver.Claim {
		c := claimOf(key, "reader")
		c.Weight = 1
		return ask(c, false, false)
	}

	h := ask(claimOf(name+"k", "holder"), false, false)
	ask(h, false, true)
	if r := renewOne(t, s, h, time.Minute); r.State != driver.Held {
		t.Errorf("%+v", r)
	}
	mustRelease(t, s, h)
	h = ask(claimOf(name+"k", "holder"), false, false)
	ask(claimOf(name+"k", "refused"), false, false)
	w := ask(claimOf(name+"k", "waiter"), true, false)
	stop := s.Watch(w, func(driver.Hint) {})
	second := ask(claimOf(name+"k", "waiter"), true, false)
	ask(claimOf(name+"k", "refused"), false, false)
	forgotten := w
	forgotten.Ticket = 0
	for _, claims := range [][]driver.Claim{{h}, {w}, {h, w, second}, {forgotten}, {w}} {
		s.Renew(ctx, claims, time.Minute)
	}
	var many []driver.Claim // more than a walk reads at once
	for range firstClaims + 8 {
		// No position ends meanwhile, however slow the machine is.
		d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6)+INTERVAL 1 HOUR WHERE k=?", name+"k")
		many = append(many, ask(claimOf(name+"k", "one of many"), true, false))
	}
	ask(claimOf(name+"k", "refused"), false, false)
	mustRelease(t, s, many[len(many)-1])
	mustRelease(t, s, h)
	eventually(t, "the next waiter", 10*time.Second, func() bool { return renewOne(t, s, w, time.Minute).State == driver.Held })
	stop()
	for _, c := range append([]driver.Claim{w, second}, many...) {
		_ = s.Release(ctx, c) // some have died
	}
	dead := ask(claimOf(name+"dead", "dead"), false, false)
	for _, owner := range []string{"a", "b"} {
		ask(claimOf(dead.Key, owner), true, false)
	}
	d.exec(t, "UPDATE baton_claim SET ends=UTC_TIMESTAMP(6) WHERE k=?", dead.Key)
	ask(claimOf(dead.Key, "next"), true, false)

	r1, r2 := reader(name+"r"), reader(name+"r")
	s.Renew(ctx, []driver.Claim{r1}, time.Minute)
	s.Renew(ctx, []driver.Claim{r1, r2}, time.Minute)
	renewOne(t, s, ask(claimOf(name+"r", "waits for readers"), true, false), time.Minute)
	move, err := s.Move(ctx, r1, driver.NewID(), "heir", time.Minute)
	if err != nil || move.Token != r1.Ticket {
		t.Errorf("move: %+v, %v", move, err)
	}
	renamed := ask(claimOf(name+"renamed", "writer"), false, false)
	for _, c := range []driver.Claim{r2, renamed} {
		if err := s.Rename(ctx, c, "renamed"); err != nil {
			t.Errorf("rename: %v", err)
		}
	}
	ask(renamed, false, true)
	for i, c := range []driver.Claim{r2, ask(claimOf(name+"d", "writer"), false, false)} {
		tx := begin(t, d.plain, 0)
		if err := s.InTx(ctx, tx, leased{claim: c}); err != nil {
			t.Errorf("%d: %v", i, err)
		}
		if err := tx.Rollback(); err != nil {
			t.Error(err)
		}
	}
	down := ask(claimOf(name+"down", "writer"), false, false)
	if _, err := s.Downgrade(ctx, down, time.Minute); err != nil {
		t.Error(err)
	}
	if _, err := s.Inspect(ctx, name+"r"); err != nil {
		t.Error(err)
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
	if _, err := s.Break(ctx, name+"d"); err != nil {
		t.Error(err)
	}

	bucket, window := bucketOf(1, time.Hour, 5), limits.Limit{Algorithm: limits.SlidingWindow, N: 5, Period: time.Hour, Parts: 10}
	for _, l := range []limits.Limit{bucket, window, {Algorithm: limits.FixedWindow, N: 5, Period: time.Hour}} {
		key := fmt.Sprint(name, l.Algorithm)
		for _, cost := range []int64{0, 1, 5, 5} {
			r := takeOf(key, l, cost)
			if _, err := s.Take(ctx, r); err != nil {
				t.Error(err)
			}
			r.ID, r.Keep = driver.NewID(), time.Minute
			r.Takes = append(r.Takes, limits.Take{Key: key + " too", Limit: l, Cost: min(cost, 1)})
			if _, err := s.Take(ctx, r); err != nil {
				t.Error(err)
			}
		}
	}
	forget := takeOf(fmt.Sprint(name, window.Algorithm), window, 0)
	forget.Mode = limits.Forget
	if _, err := s.Take(ctx, forget); err != nil {
		t.Error(err)
	}
	begun := beginRecord(t, s, name+"k", 1)
	finishRecord(t, s, name+"k", begun.Token, "done")
	if _, err := s.FindRecord(ctx, name+"k"); err != nil {
		t.Error(err)
	}
	// Every second row has expired.
	for prefix, want := range map[string]int{"": 2*listPage + 1, "row00000": 49, "row0000": 499, "row9": 0} {
		n := 0
		for _, err := range s.ListRecords(ctx, prefix) {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > 2*listPage && prefix == "" {
				break
			}
		}
		if n != want {
			t.Errorf("of %q %d records are listed, want %d", prefix, n, want)
		}
	}
	for prefix, want := range map[string]int{"": 2*listPage + 1, "row00001": 50, "row0001": 500, "row9": 0} { // the sweep removes some of the first
		n := 0
		for _, err := range s.ListStates(ctx, prefix, "row") {
			if err != nil {
				t.Fatal(err)
			}
			if n++; n > 2*listPage && prefix == "" {
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

	// The sweeps, where there is something to remove.
	d.exec(t, "UPDATE baton_lock SET last=1,busy=0,ends='1970-01-01' WHERE k IN ('row0000001','row0000002','row0000003')")
	d.exec(t, "UPDATE baton_limit SET ends='1970-01-01' WHERE k IN ('row0000001','row0000002')")
	if _, err := s.sweepStep(ctx, "row", 10); err != nil {
		t.Error(err)
	}
	if _, err := s.sweepLimits(ctx, "row", 10); err != nil {
		t.Error(err)
	}
	if n, err := s.sweepSomeTexts(ctx); err != nil || n == 0 {
		t.Errorf("%d records were swept, %v", n, err)
	}
}
