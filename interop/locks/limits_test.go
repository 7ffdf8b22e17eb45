package locks

import (
	"testing"
	"time"

	"github.com/go-redis/redis_rate/v10"
	xrate "golang.org/x/time/rate"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/redisstore"
)

// TestOtherLimitersCountApart shows what docs/coming-from/limits.md warns of with
// redis_rate and x/time/rate: Baton does not see what these have counted, so that a fleet of both allows the limit of each. The numbers that are allowed are the same, and asking
// both allows no more than one of them.
func TestOtherLimitersCountApart(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	ctx := t.Context()
	client, _ := onRedis(t)
	store, err := redisstore.New(client, redisstore.Config{}) // the *redis.Client that the program has
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	const n = 5
	limiter, err := ratelimit.New(store, ratelimit.TokenBucket(n, time.Hour, n))
	if err != nil {
		t.Fatal(err)
	}
	theirs, local := redis_rate.NewLimiter(client), xrate.NewLimiter(xrate.Every(time.Hour/n), n)
	baton := func(key string) bool {
		r, err := limiter.Allow(ctx, key)
		if err != nil {
			t.Fatal(err)
		}
		return r.OK
	}
	redisRate := func(key string) bool {
		r, err := theirs.Allow(ctx, key, redis_rate.PerHour(n))
		if err != nil {
			t.Fatal(err)
		}
		return r.Allowed == 1
	}
	count := func(allow func() bool) (allowed int) {
		for range 3 * n {
			if allow() {
				allowed++
			}
		}
		return allowed
	}
	for _, c := range []struct {
		name string
		ask  func() bool
		want int
	}{
		{"redis_rate", func() bool { return redisRate("apart") }, n},
		{"Baton after it", func() bool { return baton("apart") }, n},
		{"Baton on the name that redis_rate has in Redis", func() bool { return baton("rate:apart") }, n},
		{"both", func() bool { return redisRate("both") && baton("both") }, n},
		{"x/time/rate", local.Allow, n},
	} {
		if got := count(c.ask); got != c.want {
			t.Errorf("%s: allowed %d, want %d", c.name, got, c.want)
		}
	}
}
