package redisstore

import (
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// A server must not seem to be older than it is: what it may have forgotten
// could still be held.
func TestLifeIsNoLongerThanItIs(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	server := testserver.Redis(t)
	s, err := Open(t.Context(), Server{Addrs: []string{server.Addr}}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	for range 3 {
		began := time.Now()
		server.Restart()
		for grown := false; !grown; { // until it has seen its second change
			k, err := s.askLife(t.Context())
			if err != nil {
				if time.Since(began) > 30*time.Second {
					t.Fatal(err)
				}
				continue // not connected again
			}
			if lived := time.Since(began); k.Age > lived {
				t.Fatalf("it says that it has lived for %v, and was started %v ago", k.Age, lived)
			}
			grown = k.Age > 0
			<-time.After(10 * time.Millisecond)
		}
	}
}
