package mysqlstore

import (
	"database/sql"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
)

// Whatever takes all other connections, what is held is renewed.
func TestExhaustedPoolRenews(t *testing.T) {
	t.Parallel()
	for _, connections := range []int{3, 8} {
		s := shared(t).openWith(t, func(c *Server, _ *options) { c.Connections = connections })
		lease, _ := take(t, s, claimOf("k", "a"), time.Minute, false)
		for _, pool := range []*sql.DB{s.single, s.slow} {
			for range pool.Stats().MaxOpenConnections {
				conn, err := pool.Conn(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(func() { conn.Close() })
			}
		}
		if r := renewOne(t, s, lease, time.Minute); r.State != driver.Held {
			t.Errorf("with %d connections, all others taken: %+v, want it held", connections, r)
		}
	}
}
