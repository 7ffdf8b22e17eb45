package fault

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
)

func TestFind(t *testing.T) {
	t.Parallel()
	for names, want := range map[string]string{
		"f03": "f03", "kill": "f02", "reply-cut+f03": "f03+f07", "f10+f22+f02": "f02+f10+f22",
	} {
		if f, err := Find(names); err != nil || f.ID != want {
			t.Errorf("%s: %s, %v; want %s", names, f.ID, err, want)
		}
	}
	for names, want := range map[string]string{
		"": `"": there are f01`, "f99": `"f99"`, "f03+": `"": there`, "f02+kill": "f02 twice", "f10+f03+f11": "f10 and f11: of those that break servers",
	} {
		if f, err := Find(names); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %s, %v; want an error with %q", names, f.ID, err, want)
		}
	}
}

func TestClaimsOfSeveral(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ kind, faults, want string }{
		{"redis", "f03+f07", "+++"},
		{"redis", "f07+f16", "++-"},
		{"sentinel", "f04+f10", "-++"},
		{"redlock5", "f08+f14", "++b"},
		{"redis", "f18+f20", "b+b"},
		{"sqlite", "f03+f06", "."},
	} {
		if v, ok := Expect(c.kind, c.faults); !ok || v.String() != c.want {
			t.Errorf("%s under %s: %v, want %s", c.kind, c.faults, v, c.want)
		}
	}
	if v, ok := Expect("redis", "f03+f99"); ok {
		t.Errorf("under a fault that does not exist: %v", v)
	}
	if WhyLeft("cluster", "f03+f13") == "" || WhyLeft("cluster", "f03+f07") != "" {
		t.Error("why several are left is not why one of them is")
	}
}

// Faults that run together never stop the same client, and end together.
func TestTogetherBreakOthers(t *testing.T) {
	t.Parallel()
	const parts, clients = 3, 8
	seen := make([]map[int]bool, parts)
	var all []Fault
	here := make(chan struct{}, parts)
	failed := errors.New("failed")
	for i := range parts {
		seen[i] = make(map[int]bool)
		all = append(all, Fault{ID: string(rune('a' + i)), Needs: anybody, Run: func(ctx context.Context, s *Scene) error {
			for range 50 {
				n, _ := s.holder(ctx)
				seen[i][n] = true
			}
			here <- struct{}{}
			for len(here) < parts { // until the other faults are here
				pause(ctx, time.Millisecond)
			}
			if i == 1 {
				return failed
			}
			return nil
		}})
	}
	f, err := together(all)
	if err != nil {
		t.Fatal(err)
	}
	s := &Scene{TTL: time.Second, Rand: rand.New(rand.NewPCG(1, 2))}
	for range parts - 1 {
		s.Clients = append(s.Clients, holding{})
	}
	if lacks := f.Needs(s); !strings.Contains(lacks, "3 client processes") {
		t.Errorf("with %d clients it needs %q", len(s.Clients), lacks)
	}
	for len(s.Clients) < clients {
		s.Clients = append(s.Clients, holding{})
	}
	if lacks := f.Needs(s); lacks != "" {
		t.Errorf("it needs %s", lacks)
	}
	if err := f.Run(t.Context(), s); !errors.Is(err, failed) {
		t.Errorf("%v, want what failed in one of them", err)
	}
	drawn := 0
	for n := range clients {
		by := 0
		for i := range parts {
			if seen[i][n] {
				by++
			}
		}
		drawn += by
		if by > 1 {
			t.Errorf("client %d was drawn by %d faults", n, by)
		}
	}
	if drawn != clients {
		t.Errorf("%d of %d clients were drawn in the end", drawn, clients)
	}
}

// holding is a client that always holds a lock, and is not broken.
type holding struct{ Client }

func (holding) Holds() bool { return true }
