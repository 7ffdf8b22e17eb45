package zkstore

import (
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// inside checks which goroutines hold one key.
type inside struct {
	mu               sync.Mutex
	readers, writers int
	token            int64 // the highest of all that were granted
	written          int64 // of writers
}

func (in *inside) enter(t *testing.T, r driver.Request, token int64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if r.Exclusive() {
		if in.readers+in.writers > 0 || token <= in.token {
			t.Errorf("%s: a writer with token %d beside %d readers and %d writers, after token %d", r.Key, token, in.readers, in.writers, in.token)
		}
		in.writers++
		in.written = token
	} else {
		if in.writers > 0 || token <= in.written {
			t.Errorf("%s: a reader with token %d beside %d writers, after a writer's token %d", r.Key, token, in.writers, in.written)
		}
		in.readers++
	}
	in.token = max(in.token, token)
}

func (in *inside) leave(r driver.Request) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if r.Exclusive() {
		in.writers--
	} else {
		in.readers--
	}
}

// Many goroutines of two processes want few keys, in every mode, and some give up.
func TestStorm(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := patient(openOn(t, "", server.Addr))
	stores := []*Store{s, s, patient(openOn(t, s.root, server.Addr))} // more in one than in the other
	keys := map[string]*inside{"a": {}, "b": {}, "c": {}}
	names := []string{"a", "a", "a", "b", "c"}

	turn := func(random *rand.Rand) {
		s := stores[random.IntN(len(stores))]
		r := writer(names[random.IntN(len(names))])
		if random.IntN(5) == 0 {
			r.Weight = 1
		}
		r.Queue = random.IntN(8) > 0
		hints := make(chan driver.Hint, 16)
		stop := s.Watch(r.Claim, func(h driver.Hint) {
			select {
			case hints <- h:
			default:
			}
		})
		defer stop()
		g, err := s.Acquire(t.Context(), r)
		if err != nil {
			if r.Queue {
				t.Errorf("acquire: %v", err)
			}
			return
		}
		leaves := make(<-chan time.Time)
		if random.IntN(4) == 0 {
			leaves = time.After(time.Duration(random.Int64N(int64(30 * time.Millisecond))))
		}
		late := time.After(patience)
		for g.Waiting {
			select {
			case h := <-hints:
				if h.Granted {
					g = h.Grant
				} else if a := s.Renew(t.Context(), []driver.Claim{r.Claim}, r.TTL)[0]; a.State == driver.Held || a.State == driver.Waiting {
					g = a.Grant
				} else {
					t.Errorf("renewed: %+v", a)
					return
				}
			case <-leaves:
				if err := s.Release(t.Context(), r.Claim); err != nil {
					t.Errorf("give up: %v", err)
				}
				return
			case <-late:
				t.Errorf("%s: not granted", r.Key)
				return
			}
		}
		keys[r.Key].enter(t, r, g.Token)
		if random.IntN(4) == 0 {
			if a := s.Renew(t.Context(), []driver.Claim{r.Claim}, r.TTL)[0]; a.State != driver.Held {
				t.Errorf("a holder was renewed: %+v", a)
			}
		}
		runtime.Gosched()
		keys[r.Key].leave(r)
		if err := s.Release(t.Context(), r.Claim); err != nil {
			t.Errorf("release: %v", err)
		}
	}
	var work sync.WaitGroup
	for i := range 24 {
		work.Go(func() {
			random := rand.New(rand.NewPCG(uint64(i), 7))
			for range 40 {
				if turn(random); t.Failed() {
					return
				}
			}
		})
	}
	work.Wait()
	conn := plain(t, server.Addr)
	for k := range keys {
		if left := lineOf(t, conn, s, k); len(left) > 0 {
			t.Errorf("%s: %v are left", k, left)
		}
	}
}
