package etcdstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/kept"
	"github.com/batonhq/baton/internal/testserver"
)

// recordHarness is for servers that all cases share, except the one that restarts its
// own.
func recordHarness(addrs ...string) drivertest.RecordHarness {
	var mu sync.Mutex
	restarted := map[driver.Records]*testserver.EtcdServer{}
	return drivertest.RecordHarness{
		Open: func(t drivertest.T, n int) []driver.Records {
			at, prefix := addrs, rand.Text()
			var own *testserver.EtcdServer
			if strings.HasSuffix(t.Name(), "restart") {
				own = testserver.Etcd(tb{t})
				at = []string{own.Addr}
			}
			all := make([]driver.Records, n)
			for i := range all {
				all[i] = mustNew(t, dial(t, at...), Config{Prefix: prefix})
				mu.Lock()
				restarted[all[i]] = own
				mu.Unlock()
			}
			return all
		},
		Restart: func(t drivertest.T, all []driver.Records) {
			mu.Lock()
			own := restarted[all[0]]
			mu.Unlock()
			own.Restart()
			for _, r := range all {
				awaitReachable(t, r.(*Store))
			}
		},
		Kept:   func(t drivertest.T, r driver.Records) int { return int(countBelow(t, r.(*Store), "\trecords/")) },
		NoLeft: true,
	}
}

func TestRecordsSingle(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	drivertest.Records(t, recordHarness(testserver.SharedEtcd(t).Addr))
}

func TestRecordsThree(t *testing.T) {
	testserver.Long(t)
	testserver.NeedEtcd(t)
	t.Parallel()
	h := recordHarness(testserver.SharedEtcdThree(t).Addrs()...)
	h.Restart = nil
	drivertest.Records(t, h)
}

// A write whose answer is lost is unknown, and asking again neither counts it
// twice nor replaces what it recorded.
func TestRecordLostAnswer(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	for _, happened := range []bool{true, false} {
		s := openOn(t, testserver.SharedEtcd(t), 1)[0]
		k := tap(s)
		a := driver.Attempt{Key: fmt.Sprint("job", happened), Token: 7}
		k.lose(t, happened)
		if _, err := s.BeginAttempt(t.Context(), a, time.Hour); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("begin, happened %v: %v", happened, err)
		}
		if r, err := s.BeginAttempt(t.Context(), a, time.Hour); err != nil || r.Attempts != 1 {
			t.Errorf("begun again, happened %v: %+v, %v", happened, r, err)
		}
		k.lose(t, happened)
		if _, err := s.FinishAttempt(t.Context(), a, driver.Outcome{Result: []byte("first")}, time.Hour); !errors.Is(err, driver.ErrUnknown) {
			t.Errorf("finish, happened %v: %v", happened, err)
		}
		want := "second"
		if happened {
			want = "first"
		}
		if r, err := s.FinishAttempt(t.Context(), a, driver.Outcome{Result: []byte("second")}, time.Hour); err != nil || string(r.Result) != want {
			t.Errorf("finished again, happened %v: %+v, %v", happened, r, err)
		}
	}
}

// A record has one lease, and its former leases do not stay for as long as they might.
func TestRecordLeases(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	server := testserver.Etcd(t)
	s := openOn(t, server, 1)[0]
	const n = 10
	for i := range n {
		a := driver.Attempt{Key: fmt.Sprint("job ", i), Token: 1}
		for range 2 {
			if _, err := s.BeginAttempt(t.Context(), a, time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := s.FinishAttempt(t.Context(), a, driver.Outcome{}, time.Hour); err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 {
			if err := s.ForgetRecord(t.Context(), a.Key); err != nil {
				t.Fatal(err)
			}
		}
	}
	eventually(t, fmt.Sprint(n/2, " leases"), 20*time.Second, func() bool {
		resp, err := s.client.Leases(t.Context())
		return err == nil && len(resp.Leases) == n/2
	})
}

// Records are no locks, and a listing of locks does not show them.
func TestRecordsAreNotListed(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	s := openOn(t, testserver.SharedEtcd(t), 1)[0]
	if _, err := s.BeginAttempt(t.Context(), driver.Attempt{Key: "a/b", Token: 1, Owner: "me"}, time.Hour); err != nil {
		t.Fatal(err)
	}
	for info, err := range s.List(t.Context(), "") {
		t.Errorf("listed: %+v, %v", info, err)
	}
	resp, err := s.client.Get(t.Context(), s.textName(kept.RecordsFolder, "a/b"))
	if err != nil || len(resp.Kvs) != 1 || !strings.Contains(string(resp.Kvs[0].Value), `"token":"1","owner":"me","attempts":1`) {
		t.Errorf("an operator reads %+v, %v", resp, err)
	}
	// Text that is no record is not taken for one, and is left alone.
	if _, err := s.client.Put(t.Context(), s.textName(kept.RecordsFolder, "x"), "hello"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.BeginAttempt(t.Context(), driver.Attempt{Key: "x", Token: 1}, time.Hour); err == nil || !strings.Contains(err.Error(), "cannot be read") {
		t.Errorf("begin: %v", err)
	}
}

// A call that loses the race for a record reads again, and stops when its context ends.
func TestRecordConflict(t *testing.T) {
	testserver.NeedEtcd(t)
	t.Parallel()
	all := openOn(t, testserver.SharedEtcd(t), 2)
	k := tap(all[0])
	other := func(token int64) {
		if _, err := all[1].BeginAttempt(t.Context(), driver.Attempt{Key: "job", Token: token}, time.Hour); err != nil {
			t.Error(err)
		}
	}
	k.before = func(n int, _ *pb.TxnRequest) error {
		if n <= 2 {
			other(int64(n)) // between our read and our write
		}
		return nil
	}
	if r, err := all[0].BeginAttempt(t.Context(), driver.Attempt{Key: "job", Token: 9}, time.Hour); err != nil || r.Attempts != 3 || k.count() != 3 {
		t.Errorf("%+v, %v, after %d writes", r, err, k.count())
	}
	ctx, cancel := context.WithCancel(t.Context())
	k.before = func(n int, _ *pb.TxnRequest) error {
		other(int64(100 + n))
		if n == 5 {
			cancel()
		}
		return nil
	}
	if _, err := all[0].BeginAttempt(ctx, driver.Attempt{Key: "job", Token: 1 << 40}, time.Hour); !errors.Is(err, context.Canceled) {
		t.Errorf("with a context that ends: %v", err)
	}
	if !slices.Contains([]int{5, 6}, k.count()) {
		t.Errorf("%d writes", k.count())
	}
}
