package zkstore

import (
	"errors"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// The answer to a release is lost: it was done, or it will be.
func TestReleaseWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	for name, arm := range map[string]func(p *faultproxy.Proxy, deletes func([]byte) bool) <-chan struct{}{
		"done":     (*faultproxy.Proxy).CutAfterRequest,
		"not done": (*faultproxy.Proxy).CutBeforeRequest,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			proxy := faultproxy.New(t, server.Addr)
			s := openOn(t, "", proxy.Addr)
			r := writer("k")
			hold(t, s, r)
			cut := arm(proxy, creates(s, r.Key))
			if err := s.Release(t.Context(), r.Claim); !errors.Is(err, driver.ErrUnknown) {
				t.Errorf("release: %v, want driver.ErrUnknown", err)
			}
			<-cut
			direct := plain(t, server.Addr)
			eventually(t, "an empty line", func() bool { return len(queueIn(t, direct, s, "k")) == 0 })
			if a := renew(t, s, r); a.State != driver.Lost {
				t.Errorf("renewed: %+v", a)
			}
		})
	}
}
