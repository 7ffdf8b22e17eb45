package zkstore

import (
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// recordHarness is for servers that all cases share, except the one that restarts its
// own.
func recordHarness(addr func(i int) string) drivertest.RecordHarness {
	var mu sync.Mutex
	servers := map[driver.Records]*testserver.ZooKeeperServer{}
	return drivertest.RecordHarness{
		Open: func(t drivertest.T, n int) []driver.Records {
			var own *testserver.ZooKeeperServer
			if strings.HasSuffix(t.Name(), "restart") {
				own = testserver.ZooKeeper(tb{t})
			}
			root := "/" + rand.Text()
			all := make([]driver.Records, n)
			for i := range all {
				at := addr(i)
				if own != nil {
					at = own.Addr
				}
				s := mustOpen(t, Server{Addrs: []string{at}}, Config{Root: root})
				if strings.HasSuffix(t.Name(), "removed") {
					s.deadFor = 100 * time.Millisecond
				}
				all[i] = s
				mu.Lock()
				servers[s] = own
				mu.Unlock()
			}
			return all
		},
		Restart: func(t drivertest.T, all []driver.Records) {
			mu.Lock()
			own := servers[all[0]]
			mu.Unlock()
			locks := make([]driver.Locks, len(all))
			for i, r := range all {
				locks[i] = r.(*Store)
			}
			again := newConnections(locks)
			own.Restart()
			again(t)
		},
		Kept: func(t drivertest.T, r driver.Records) (n int) {
			s := r.(*Store)
			folders, _, err := s.conn.Children(s.recordsRoot())
			if err != nil {
				t.Fatalf("count: %v", err)
			}
			for _, f := range folders {
				names, _, err := s.conn.Children(s.recordsRoot() + "/" + f)
				if err != nil {
					t.Fatalf("count: %v", err)
				}
				n += len(names)
			}
			return n
		},
	}
}

func TestRecordsSingle(t *testing.T) {
	testserver.NeedZooKeeper(t)
	t.Parallel()
	shared := testserver.SharedZooKeeper(t)
	drivertest.Records(t, recordHarness(func(int) string { return shared.Addr }))
}

func TestRecordsEnsemble(t *testing.T) {
	testserver.Long(t)
	testserver.NeedZooKeeper(t)
	t.Parallel()
	ensemble := testserver.SharedZooKeeperEnsemble(t)
	h := recordHarness(func(i int) string { return ensemble.Nodes[i%3].Addr })
	h.Restart = nil // other tests use them
	drivertest.Records(t, h)
}

// A write whose answer is lost is unknown, and asking again neither counts it
// twice nor replaces what it recorded.
func TestRecordLostAnswer(t *testing.T) {
	testserver.NeedZooKeeper(t)
	t.Parallel()
	p := faultproxy.New(t, testserver.SharedZooKeeper(t).Addr)
	s := openOn(t, "", p.Addr)
	ask := func(what string, f func() (driver.Record, error)) (r driver.Record) {
		cut := p.CutAfterRequest(func(request []byte) bool { return strings.Contains(string(request), `"token":"7"`) })
		_, err := f()
		if !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("%s, the answer was cut off: %v, want driver.ErrUnknown", what, err)
		}
		<-cut
		eventually(t, what+" again", func() (ok bool) {
			r, err = f()
			return err == nil
		})
		return r
	}
	a := driver.Attempt{Key: "job", Token: 7}
	if r := ask("begin", func() (driver.Record, error) { return s.BeginAttempt(t.Context(), a, time.Hour) }); r.Attempts != 1 {
		t.Errorf("begun again: %+v", r)
	}
	n := 0
	if r := ask("finish", func() (driver.Record, error) {
		n++
		return s.FinishAttempt(t.Context(), a, driver.Outcome{Result: []byte(fmt.Sprint(n))}, time.Hour)
	}); string(r.Result) != "1" {
		t.Errorf("finished again: %+v", r)
	}
}

// A process that read a record which was then forgotten, or expired, and made again
// does not write what it decided on the old one.
func TestRecordMadeAgain(t *testing.T) {
	testserver.NeedZooKeeper(t)
	t.Parallel()
	s := openOn(t, "", testserver.SharedZooKeeper(t).Addr)
	begin := func(token int64) {
		t.Helper()
		if _, err := s.BeginAttempt(t.Context(), driver.Attempt{Key: "job", Token: token}, time.Hour); err != nil {
			t.Fatal(err)
		}
	}
	begin(10)
	old, err := s.readRecord(t.Context(), "job")
	if err != nil {
		t.Fatal(err)
	}
	if err := s.ForgetRecord(t.Context(), "job"); err != nil {
		t.Fatal(err)
	}
	if n, err := s.sweepFolder(t.Context(), s.recordFolder("job"), 100); n != 1 || err != nil {
		t.Fatalf("swept %d, %v", n, err)
	}
	begin(12)
	if written, err := s.writeRecord(t.Context(), "job", old, []byte("1 2 text")); written || err != nil {
		t.Errorf("written over what was made again: %v, %v", written, err)
	}
	if r, err := s.FindRecord(t.Context(), "job"); err != nil || r.Token != 12 || r.Attempts != 1 {
		t.Errorf("%+v, %v", r, err)
	}
}

// Records are no locks, and a listing of locks does not show them.
func TestRecordsAreNotListed(t *testing.T) {
	testserver.NeedZooKeeper(t)
	t.Parallel()
	s := openOn(t, "", testserver.SharedZooKeeper(t).Addr)
	if _, err := s.BeginAttempt(t.Context(), driver.Attempt{Key: "a/b", Token: 1, Owner: "me"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	for info, err := range s.List(t.Context(), "") {
		t.Errorf("listed: %+v, %v", info, err)
	}
	data, _, err := s.conn.Get(s.recordPath("a/b"))
	if err != nil || !strings.Contains(string(data), `"token":"1","owner":"me","attempts":1`) {
		t.Errorf("an operator reads %q, %v", data, err)
	}
	// Data that are no record are not taken for one, and are left alone.
	if _, err := s.conn.Set(s.recordPath("a/b"), []byte("hello"), -1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginAttempt(t.Context(), driver.Attempt{Key: "a/b", Token: 2}, time.Hour); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("begin: %v", err)
	}
	// A user who may not write is told so.
	s.acl = zk.WorldACL(zk.PermRead)
	if _, err := s.BeginAttempt(t.Context(), driver.Attempt{Key: "closed", Token: 1}, time.Hour); err == nil {
		_, err = s.FinishAttempt(t.Context(), driver.Attempt{Key: "closed", Token: 1}, driver.Outcome{}, time.Hour)
		if err == nil || !strings.Contains(err.Error(), "access list") {
			t.Errorf("finish: %v", err)
		}
	} else if !strings.Contains(err.Error(), "access list") {
		t.Errorf("begin: %v", err)
	}
}

// The server's time lies between the bounds, however long the answer took.
func TestRecordClock(t *testing.T) {
	var c recordClock
	sent := time.Now().Add(-3 * time.Second) // and the answer came just now
	c.set(1_000_000, sent)
	from, to, age := c.bounds()
	if from < 1_000_000_000 || to < 1_003_000_000 || from > 1_001_000_000 || age < 3*time.Second {
		t.Errorf("between %d and %d, %v old", from, to, age)
	}
}
