package redisstore

import (
	"crypto/rand"
	"testing"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/drivertest"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

func TestLimitsSingle(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.SharedRedis(t)
	drivertest.Limits(t, limitHarness(func(t drivertest.T) rueidis.Client {
		return ruDial(t, rueidis.ClientOption{InitAddress: []string{server.Addr}})
	}))
}

func TestLimitsSentinel(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	set := testserver.RedisSentinel(t)
	drivertest.Limits(t, limitHarness(func(t drivertest.T) rueidis.Client {
		return ruDial(t, rueidis.ClientOption{
			InitAddress: []string{set.Sentinel.Addr},
			Sentinel:    rueidis.SentinelOption{MasterSet: set.Name},
		})
	}))
}

func TestLimitsCluster(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	h := limitHarness(func(t drivertest.T) rueidis.Client {
		return ruDial(t, rueidis.ClientOption{InitAddress: cluster.Addrs()})
	})
	h.SameSlot = func(key string) string { return "{same}" + key }
	drivertest.Limits(t, h)
}

// TestLimitsMiniredis runs where no server is installed, too.
func TestLimitsMiniredis(t *testing.T) {
	t.Parallel()
	addr := mini(t)
	drivertest.Limits(t, limitHarness(func(t drivertest.T) rueidis.Client {
		return ruDial(t, rueidis.ClientOption{InitAddress: []string{addr}, ForceSingleClient: true})
	}))
}

// limitHarness is for servers that many cases use together, each with a prefix
// of its own.
func limitHarness(dial func(t drivertest.T) rueidis.Client) drivertest.LimitHarness {
	return drivertest.LimitHarness{
		Open: func(t drivertest.T, n int) []limits.Store {
			prefix := rand.Text() + ":"
			limits := make([]limits.Store, n)
			for i := range limits {
				limits[i] = mustNew(t, dial(t), Config{Prefix: prefix})
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
