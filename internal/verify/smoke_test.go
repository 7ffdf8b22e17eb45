package verify

import (
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/internal/verify/deploy"
	"github.com/batonhq/baton/internal/verify/fault"
)

// The four faults that have broken the most locks: a holder that is stopped, a holder
// that is cut off, an answer that is lost after its effect, and a server that is
// killed. On every kind of store what is claimed holds.
func TestSmoke(t *testing.T) {
	t.Parallel()
	testserver.NeedRedis(t)
	testserver.NeedMariaDB(t)
	testserver.NeedPostgres(t)
	testserver.NeedZooKeeper(t)
	testserver.NeedEtcd(t)
	for _, k := range deploy.Kinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			cfg := quick("")
			cfg.Local, cfg.TTL = k.Name, 2*time.Second // the shortest that all accept
			if k.Name == "memory" {
				cfg.Clients = 1
			}
			faults := []string{"f04", "f06", "f07", "f10"}
			if k.Name == "redis-nopersist" || k.Name == "etcd" { // as redis and etcd3
				faults = []string{"f10"}
			}
			for _, f := range faults {
				if claim, ok := fault.Expect(k.Name, f); ok && claim.E != fault.NoSuch && fault.WhyLeft(k.Name, f) == "" {
					cfg.Faults = append(cfg.Faults, f)
				}
			}
			for _, x := range proves(t, cfg) {
				t.Logf("%s: %s, %+v", x.Fault, x.Verdict, x.Looked)
				if x.Verdict != Held && x.Verdict != Excused {
					t.Errorf("%s: %s %v", x.Fault, x.Verdict, x.Why)
					for _, v := range x.Violations {
						t.Errorf("%s: %+v", x.Fault, v)
					}
				}
			}
		})
	}
}
