package redisstore

import (
	"crypto/rand"
	"testing"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

func TestLimitsSingle(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.SharedRedis(t)
	drivertest.Limits(t, limitHarness(brought(server.Addr)))
}

func TestLimitsSentinel(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	drivertest.Limits(t, limitHarness(through(Server{Addrs: []string{set.Sentinel.Addr}, Master: set.Name})))
}

func TestLimitsCluster(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	h := limitHarness(through(Server{Addrs: cluster.Addrs(), Cluster: true}))
	h.SameSlot = func(key string) string { return "{same}" + key }
	drivertest.Limits(t, h)
}

// TestLimitsMiniredis runs where no server is installed, too.
func TestLimitsMiniredis(t *testing.T) {
	t.Parallel()
	addr := mini(t)
	drivertest.Limits(t, limitHarness(onMini(addr)))
}

// limitHarness is for servers that many cases use together, each with a prefix
// of its own.
func limitHarness(open opener) drivertest.LimitHarness {
	return drivertest.LimitHarness{
		Open: func(t drivertest.T, n int) []limits.Store {
			prefix := rand.Text() + ":"
			limits := make([]limits.Store, n)
			for i := range limits {
				limits[i] = open(t, Config{Prefix: prefix})
			}
			return limits
		},
		Kept: func(t drivertest.T, l limits.Store) (kept int) {
			s := l.(*Store)
			err := s.eachPrimary(t.Context(), func(n wire.Node) error {
				return scan(t.Context(), n, escapeGlob(s.names.own)+"[rd]:*", "string", func(names []string) error {
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
