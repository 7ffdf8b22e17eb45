package rueidisstore

import (
	"context"
	"crypto/rand"
	"errors"
	"testing"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore"
)

// open returns n stores with one fresh prefix, each over a client of its own.
func open(t drivertest.T, n int, o rueidis.ClientOption) []*redisstore.Store {
	o.DisableCache = true
	prefix := rand.Text() + ":"
	stores := make([]*redisstore.Store, n)
	for i := range stores {
		client, err := rueidis.NewClient(o)
		if err != nil {
			t.Fatalf("connect: %v", err)
		}
		t.Cleanup(client.Close)
		if stores[i], err = New(client, redisstore.Config{Prefix: prefix}); err != nil {
			t.Fatalf("new store: %v", err)
		}
		t.Cleanup(func() { stores[i].Close() })
	}
	return stores
}

func contract(t *testing.T, o rueidis.ClientOption, only ...string) {
	drivertest.Locks(t, drivertest.Harness{Only: only, Open: func(t drivertest.T, n int) (all []driver.Locks) {
		for _, s := range open(t, n, o) {
			all = append(all, s)
		}
		return all
	}})
}

// As programs have it: with connections on which requests may overtake each other.
func TestContractSingle(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	contract(t, rueidis.ClientOption{InitAddress: []string{testserver.SharedRedis(t).Addr}, PipelineMultiplex: 2})
}

// What a client may change is how it finds servers, makes one request of several, and
// listens. The store has passed the whole contract with its own.
func TestContractBySentinelAndInCluster(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	only := []string{
		"exclusion", "first come, first served", "one bad key does not spoil a batch", "a large batch",
		"list shows what is held or waited for", "all handles see one life of the server", "a hand-over is hinted",
		"odd keys are different locks", "a batch may hold waiters and holders", "list shows many keys",
	}
	set, cluster := testserver.RedisSentinel(t), testserver.SharedRedisCluster(t)
	t.Run("Sentinel", func(t *testing.T) {
		contract(t, rueidis.ClientOption{InitAddress: []string{set.Sentinel.Addr}, Sentinel: rueidis.SentinelOption{MasterSet: set.Name}}, only...)
	})
	t.Run("Cluster", func(t *testing.T) { contract(t, rueidis.ClientOption{InitAddress: cluster.Addrs()}, only...) })
}

func TestLimitsAndRecords(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	o := rueidis.ClientOption{InitAddress: []string{testserver.SharedRedis(t).Addr}}
	drivertest.Limits(t, drivertest.LimitHarness{
		Only: []string{"all or nothing", "a repeated request is taken once"},
		Open: func(t drivertest.T, n int) (all []limits.Store) {
			for _, s := range open(t, n, o) {
				all = append(all, s)
			}
			return all
		},
	})
	drivertest.Records(t, drivertest.RecordHarness{
		Only: []string{"begin and finish", "repeated calls"},
		Open: func(t drivertest.T, n int) (all []driver.Records) {
			for _, s := range open(t, n, o) {
				all = append(all, s)
			}
			return all
		},
	})
}

// A caller leaves its call when its context ends, and the clean-up does not overtake it.
func TestAbandonedCall(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedRedis(t).Addr)
	s := open(t, 1, rueidis.ClientOption{InitAddress: []string{proxy.Addr}, PipelineMultiplex: 2})[0]
	c := driver.Claim{Key: "job", ID: driver.NewID(), Owner: "test", Weight: driver.Whole, Capacity: driver.Whole}
	g, err := s.Acquire(t.Context(), driver.Request{Claim: c, TTL: time.Minute}) // the server knows the scripts now
	if err != nil {
		t.Fatal(err)
	}
	c.Ticket = g.Ticket
	if err := s.Release(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.ID, c.Ticket = driver.NewID(), 0
	proxy.Hold(faultproxy.ToServer)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := s.Acquire(ctx, driver.Request{Claim: c, TTL: time.Minute}); !errors.Is(err, driver.ErrUnknown) || !errors.Is(err, context.Canceled) {
		t.Errorf("abandoned: %v, want driver.ErrUnknown and context.Canceled", err)
	}
	released := make(chan error, 1)
	go func() { released <- s.Release(t.Context(), c) }()
	proxy.Heal()
	if err := <-released; err != nil {
		t.Errorf("the release overtook the acquire: %v", err)
	}
}

func TestClosedClient(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	client, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{testserver.SharedRedis(t).Addr}})
	if err != nil {
		t.Fatal(err)
	}
	s, err := New(client, redisstore.Config{Prefix: rand.Text() + ":"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	drivertest.ClosedClient(t, s, client.Close)
}
