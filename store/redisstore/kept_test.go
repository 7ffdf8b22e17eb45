package redisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

func TestRecordsSingle(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.SharedRedis(t)
	drivertest.Records(t, recordHarness(brought(server.Addr)))
}

func TestRecordsSentinel(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	drivertest.Records(t, recordHarness(through(Server{Addrs: []string{set.Sentinel.Addr}, Master: set.Name})))
}

func TestRecordsCluster(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	drivertest.Records(t, recordHarness(through(Server{Addrs: cluster.Addrs(), Cluster: true})))
}

// TestRecordsMiniredis runs where no server is installed, too.
func TestRecordsMiniredis(t *testing.T) {
	t.Parallel()
	addr := mini(t)
	h := recordHarness(onMini(addr))
	h.Many = 2*lookAtOnce + 50
	drivertest.Records(t, h)
}

// recordHarness is for servers that many cases use together, each with a prefix
// of its own.
func recordHarness(open opener) drivertest.RecordHarness {
	return drivertest.RecordHarness{
		Open: func(t drivertest.T, n int) []driver.Records {
			prefix := rand.Text() + ":"
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = open(t, Config{Prefix: prefix})
			}
			return all
		},
		Kept: func(t drivertest.T, r driver.Records) (kept int) {
			s := r.(*Store)
			err := s.eachPrimary(t.Context(), func(n wire.Node) error {
				return scan(t.Context(), n, escapeGlob(s.names.own)+"o:*", "string", func(names []string) error {
					kept += len(names)
					return nil
				})
			})
			if err != nil {
				t.Fatalf("count what is kept: %v", err)
			}
			return kept
		},
	}
}

func attempt(key string, token int64) driver.Attempt {
	return driver.Attempt{Key: key, Token: token, Owner: "me"}
}

func begin(t *testing.T, s *Store, key string, token int64, keep time.Duration) driver.Record {
	t.Helper()
	r, err := s.BeginAttempt(t.Context(), attempt(key, token), keep)
	if err != nil {
		t.Fatalf("attempt %d of %q begins: %v", token, key, err)
	}
	return r
}

func finish(t *testing.T, s *Store, key string, token int64, result string, keep time.Duration) driver.Record {
	t.Helper()
	r, err := s.FinishAttempt(t.Context(), attempt(key, token), driver.Outcome{Result: []byte(result)}, keep)
	if err != nil {
		t.Fatalf("attempt %d of %q finishes: %v", token, key, err)
	}
	return r
}

// A call is one script, unless an attempt begins that is not the first.
func TestRecordIsOneScript(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	begin(t, s, "warm", 1, time.Hour)
	l.do("CONFIG", "RESETSTAT")
	begin(t, s, "job", 1, time.Hour)
	begin(t, s, "job", 1, time.Hour)
	finish(t, s, "job", 1, "x", time.Hour)
	finish(t, s, "job", 1, "x", time.Hour)
	begin(t, s, "job", 2, time.Hour)
	if _, err := s.FindRecord(t.Context(), "job"); err != nil {
		t.Fatal(err)
	}
	if l.calls("evalsha") != 7 || l.calls("eval") != 0 || l.calls("set") != 3 { // that which begins again looks first
		t.Errorf("six calls took\n%s", l.do("INFO", "commandstats"))
	}
}

// What an operator finds, and how long it lives.
func TestRecordLayout(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	const name = "baton:o:{job}"
	sent := time.Now()
	begin(t, s, "job", 1<<62+1, check.MaxRecordKeep)
	left := func(keep time.Duration) {
		t.Helper()
		if ms := number(l.do("PTTL", name)); ms > keep.Milliseconds() || ms < (keep-time.Since(sent)).Milliseconds()-1 {
			t.Errorf("it lives for another %d ms of %v", ms, keep)
		}
	}
	left(check.MaxRecordKeep)
	if got := l.do("GET", name); !strings.HasPrefix(got, `{"state":"begun","token":"4611686018427387905","owner":"me","attempts":1,`) {
		t.Errorf("while it runs: %q", got)
	}
	sent = time.Now()
	finish(t, s, "job", 1<<62+1, "paid", time.Hour)
	left(time.Hour)
	if got := l.do("GET", name); !strings.HasPrefix(got, `{"state":"succeeded","token":"4611686018427387905","owner":"me","attempts":1,`) || !strings.HasSuffix(got, "\npaid") {
		t.Errorf("in the end: %q", got)
	}
}

// What other programs have written under a record's name is reported, and left alone.
func TestForeignRecords(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	for i, command := range [][]string{
		{"SET", "x"},
		{"RPUSH", "x"},
		{"SADD", "x"},
		{"HSET", "some", "thing"},
		{"SET", `{"state":"begun","token":"-7"}`},
		{"SET", `{"state":"begun","token":"77777777777777777777"}`},
	} {
		key := fmt.Sprint("k", i)
		name := s.names.beside(key).record()
		l.do(append([]string{command[0], name}, command[1:]...)...)
		before := l.do("DUMP", name)
		_, errBegin := s.BeginAttempt(t.Context(), attempt(key, 8), time.Hour)
		_, errFinish := s.FinishAttempt(t.Context(), attempt(key, 7), driver.Outcome{}, time.Hour)
		_, errFind := s.FindRecord(t.Context(), key)
		for what, err := range map[string]error{"begin": errBegin, "finish": errFinish, "find": errFind, "forget": s.ForgetRecord(t.Context(), key)} {
			if e, ok := errors.AsType[*driver.KeyError](err); !ok || command[0] != "SET" && !strings.Contains(e.Error(), name) {
				t.Errorf("%v: %s: %v, want a *driver.KeyError, that names it if it is no text", command, what, err)
			}
		}
		if l.do("DUMP", name) != before {
			t.Errorf("%v: it was changed", command)
		}
	}
}

// An answer that does not come leaves the outcome unknown; a caller that asks again is
// told what has happened, once.
func TestRecordsLostAnswer(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	s := mustNew(t, dial(t, proxy.Addr))
	begin(t, s, "warm", 1, time.Hour) // the first call of a script sends its text
	lost := func(what, carries string, call func(context.Context) error) {
		t.Helper()
		cut := proxy.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), carries) })
		if err := call(t.Context()); !errors.Is(err, driver.ErrUnknown) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s: the answer was cut off: %v, want driver.ErrUnknown", what, err)
		}
		<-cut
		// Here it may have been made, or not; it may be made late.
		if what != "forget" {
			proxy.Hold(faultproxy.ToClient)
			ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
			defer cancel()
			if err := call(ctx); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s: no answer in time: %v, want the context's error", what, err)
			}
			proxy.Heal()
			// This waits for what was abandoned, which may be sent only now.
			if _, err := s.FindRecord(t.Context(), "job"); err != nil && !errors.Is(err, driver.ErrNoRecord) {
				t.Error(err)
			}
		}
	}
	lost("begin", "{job}", func(ctx context.Context) error {
		_, err := s.BeginAttempt(ctx, attempt("job", 7), time.Hour)
		return err
	})
	if r := begin(t, s, "job", 7, time.Hour); r.Done || r.Attempts != 1 {
		t.Errorf("begun again: %+v", r)
	}
	n := 0
	lost("finish", "result 1", func(ctx context.Context) error {
		n++
		_, err := s.FinishAttempt(ctx, attempt("job", 7), driver.Outcome{Result: fmt.Append(nil, "result ", n)}, time.Hour)
		return err
	})
	if r := finish(t, s, "job", 7, "another", time.Hour); string(r.Result) != "result 1" || r.Attempts != 1 {
		t.Errorf("finished again: %+v", r)
	}
	lost("find", "{job}", func(ctx context.Context) error {
		_, err := s.FindRecord(ctx, "job")
		return err
	})
	lost("forget", "succeeded", func(ctx context.Context) error { return s.ForgetRecord(ctx, "job") })
	if err := s.ForgetRecord(t.Context(), "job"); !errors.Is(err, driver.ErrNoRecord) {
		t.Errorf("forgotten again: %v", err)
	}
	s.Close()
	if _, err := s.FindRecord(t.Context(), "job"); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("after Close: %v", err)
	}
}

// A server that may not write has changed nothing, and does not say that an
// attempt is superseded: it may not have heard of what began.
func TestRecordsRefusedByTheServer(t *testing.T) {
	l := newLab(t, 1)
	s := l.stores[0]
	begin(t, s, "begun", 7, time.Hour)
	begin(t, s, "done", 7, time.Hour)
	finish(t, s, "done", 7, "x", time.Hour)
	before := []string{l.do("DUMP", "baton:o:{begun}"), l.do("DUMP", "baton:o:{done}")}
	begins := func(key string, token int64) error {
		_, err := s.BeginAttempt(t.Context(), attempt(key, token), time.Hour)
		return err
	}
	finishes := func(key string, token int64) error {
		_, err := s.FinishAttempt(t.Context(), attempt(key, token), driver.Outcome{}, time.Hour)
		return err
	}
	refused := func(what string, errs map[string]error) {
		t.Helper()
		for call, err := range errs {
			if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrUnknown) {
				t.Errorf("%s, %s: %v, want driver.ErrUnavailable", what, call, err)
			}
		}
	}
	all := func() map[string]error {
		return map[string]error{
			"begin": begins("new", 7), "next": begins("begun", 8), "again": begins("begun", 7), "stale": begins("begun", 6),
			"finish": finishes("begun", 7), "finish stale": finishes("begun", 6), "finish unknown": finishes("new", 6), "finish late": finishes("done", 6),
			"forget": s.ForgetRecord(t.Context(), "begun"), "forget unknown": s.ForgetRecord(t.Context(), "new"),
		}
	}
	l.do("CONFIG", "SET", "maxmemory", "1")
	refused("out of memory", map[string]error{"begin": begins("new", 7), "next": begins("begun", 8), "finish": finishes("begun", 7)})
	l.do("CONFIG", "SET", "maxmemory", "0")
	l.do("CONFIG", "SET", "min-replicas-to-write", "1")
	refused("too few replicas", all())
	l.do("CONFIG", "SET", "min-replicas-to-write", "0")
	l.do("REPLICAOF", "127.0.0.1", "1")
	refused("demoted to a replica", all())
	l.do("REPLICAOF", "NO", "ONE")
	if after := []string{l.do("DUMP", "baton:o:{begun}"), l.do("DUMP", "baton:o:{done}")}; !reflect.DeepEqual(after, before) || l.do("EXISTS", "baton:o:{new}") != "0" {
		t.Error("something was changed")
	}
}

// With a log that is written before answers, the crash of the server forgets
// nothing. FLUSHALL does: what was done can be done again, and what was begun
// cannot finish.
func TestRecordsThroughCrashAndFlush(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t, "--appendonly", "yes", "--appendfsync", "always")
	s := mustNew(t, dial(t, server.Addr))
	begin(t, s, "begun", 7, time.Hour)
	begin(t, s, "done", 7, time.Hour)
	finish(t, s, "done", 7, "x", time.Hour)
	server.Kill()
	server.Restart()
	awaitReachable(t, s)
	if r := begin(t, s, "done", 8, time.Hour); !r.Done || string(r.Result) != "x" {
		t.Errorf("after the crash: %+v", r)
	}
	finish(t, s, "begun", 7, "y", time.Hour)

	begin(t, s, "begun", 9, time.Hour)
	begin(t, s, "other", 9, time.Hour)
	if _, err := server.Do("FLUSHALL"); err != nil {
		t.Fatal(err)
	}
	if r := begin(t, s, "done", 9, time.Hour); r.Done || r.Attempts != 1 {
		t.Errorf("forgotten: %+v", r)
	}
	if _, err := s.FinishAttempt(t.Context(), attempt("other", 9), driver.Outcome{}, time.Hour); !errors.Is(err, driver.ErrSuperseded) {
		t.Errorf("forgotten: %v", err)
	}
}

// What is under the name of the overrides, and is none, is left as it is; what others put
// beside them is not told.
func TestOverridesBesideOthers(t *testing.T) {
	l := newLab(t, 1)
	s, o := l.stores[0], limits.Override{Key: "k", N: 5, Period: time.Minute}
	name := s.names.overrides()
	l.do("SET", name, "x")
	_, errLook := s.Overrides(t.Context())
	for what, err := range map[string]error{"set": s.SetOverride(t.Context(), o, time.Hour), "removed": s.SetOverride(t.Context(), o, 0), "looked up": errLook} {
		if e, ok := errors.AsType[*limits.Error](err); !ok || !strings.Contains(e.Error(), name) {
			t.Errorf("%s: %v, want a *limits.Error that names it", what, err)
		}
	}
	if l.do("GET", name) != "x" {
		t.Error("it was changed")
	}
	l.do("DEL", name)
	l.do("HSET", name, "a", "x", "b", "1 2 3", "c", "9999999999999999", "d", "9999999999999999 ", "e", "9999999999999999 {}", "f", `1 {"n":5,"period":"0s","until":"2100-01-01T00:00:00Z"}`)
	if all, err := s.Overrides(t.Context()); err != nil || len(all) != 0 {
		t.Errorf("%+v, %v", all, err)
	}
	l.do("DEL", name)
	// The hash goes with the last override.
	for _, keep := range []time.Duration{200 * time.Millisecond, 100 * time.Millisecond} {
		o.Key += "k"
		if err := s.SetOverride(t.Context(), o, keep); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "the hash is gone", 10*time.Second, func() bool { return l.do("EXISTS", name) == "0" })
}
