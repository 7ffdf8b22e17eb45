package fault

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/batonhq/baton/lab/verify/history"
)

// wired is a client that holds a lock, and is not broken itself.
type wired struct{ Client }

func (wired) Holds() bool { return true }

// A fault of the wires hits the clients that it names, and ends. A far client is slow, a slow server
// is slow for all, and silent connections stay silent while a new one works.
func TestWireFaults(t *testing.T) {
	t.Parallel()
	s := newSite(t, "redis")
	took := func(client int) time.Duration {
		began := time.Now()
		_ = s.try(t.Context(), client, "wires", time.Minute) // an error means that it is too far for so short a TTL
		return time.Since(began)
	}
	for _, c := range []struct {
		fault string
		seen  func() error
	}{
		{"f26", func() error {
			deaf := 0
			for i := range s.locks {
				ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
				if _, err := s.locks[i].Inspect(ctx, "wires"); errors.Is(err, context.DeadlineExceeded) {
					deaf++
				} else if err != nil {
					t.Error(err)
				}
				cancel()
				if err := openStore(t, s.URL(i)).Close(); err != nil {
					t.Error(err)
				}
			}
			if deaf != 1 {
				return fmt.Errorf("%d clients hear nothing, want 1", deaf)
			}
			return nil
		}},
		{"f27", func() error {
			if a, b := took(0), took(1); max(a, b) < 600*time.Millisecond {
				return fmt.Errorf("a lock takes %v and %v, and nobody is far", a, b)
			}
			return nil
		}},
		{"f28", func() error {
			if a, b := took(0), took(1); min(a, b) < 400*time.Millisecond {
				return fmt.Errorf("a lock takes %v and %v, and the server is not slow", a, b)
			}
			return nil
		}},
	} {
		f, err := Find(c.fault)
		if err != nil {
			t.Fatal(err)
		}
		marks := make(map[history.MarkWhat]int)
		scene := &Scene{
			Clients: []Client{wired{}, wired{}}, Proxies: s.Proxies, Servers: s.Deployment, TTL: time.Minute, Rand: rand.New(rand.NewPCG(1, 2)),
		}
		if lacks := f.Needs(scene); lacks != "" {
			t.Fatalf("%s lacks %s", f.ID, lacks)
		}
		ctx, cancel := context.WithCancel(t.Context())
		looked := make(chan struct{})
		scene.Mark = func(what history.MarkWhat, _ string) {
			if marks[what]++; what == history.Breaks && marks[what] == 1 {
				go func() {
					defer close(looked)
					defer cancel()
					if err := await(f.ID, c.seen); err != nil { // the wires break right after the mark
						t.Error(err)
					}
				}()
			}
		}
		if err := f.Run(ctx, scene); err != nil {
			t.Errorf("%s: %v", f.ID, err)
		}
		<-looked
		if marks[history.Breaks] == 0 || marks[history.Breaks] != marks[history.Heals] {
			t.Errorf("%s: marks %v", f.ID, marks)
		}
		s.serves(t, "after "+f.ID)
	}
}
