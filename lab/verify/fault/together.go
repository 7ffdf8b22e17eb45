package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"

	"github.com/batonhq/baton/internal/testserver"
)

// Find returns the fault with that ID or name, or several that set in together:
// "f03+reply-cut".
func Find(names string) (Fault, error) {
	all := WithFronts()
	var parts []Fault
	for name := range strings.SplitSeq(names, "+") {
		i := slices.IndexFunc(all, func(f Fault) bool { return name == f.ID || name == f.Name })
		if i < 0 {
			var known []string
			for _, f := range all {
				known = append(known, f.ID+" "+f.Name)
			}
			return Fault{}, fmt.Errorf("%q: there are %s", name, strings.Join(known, ", "))
		}
		parts = append(parts, all[i])
	}
	if len(parts) == 1 {
		return parts[0], nil
	}
	return together(parts)
}

// together makes one fault of several. Each has its own clients to kill, stop and cut off. A fault of
// all connections may heal early, together with another one that heals some. At most one of them may
// break servers, because a dead server cannot be stopped.
func together(parts []Fault) (f Fault, err error) {
	slices.SortFunc(parts, func(a, b Fault) int { return strings.Compare(a.ID, b.ID) })
	servers := ""
	for i, p := range parts {
		switch {
		case i > 0 && p.ID == parts[i-1].ID:
			return f, fmt.Errorf("%s twice: a fault does not go with itself", p.ID)
		case !OfServers(p.ID):
		case servers != "":
			return f, fmt.Errorf("%s and %s: of those that break servers one goes with others", servers, p.ID)
		default:
			servers = p.ID
		}
	}
	texts := func(of func(Fault) string, sep string) string {
		var all []string
		for _, p := range parts {
			all = append(all, of(p))
		}
		return strings.Join(all, sep)
	}
	both := Fault{Owed: true, Always: true}
	for _, p := range parts {
		both.RoundTrip = max(both.RoundTrip, p.RoundTrip)
		both.TTL, both.Owed = max(both.TTL, p.TTL), both.Owed && p.Owed
		both.Always = both.Always && p.Always
		both.Clocks, both.Disks, both.Callers = both.Clocks || p.Clocks, both.Disks || p.Disks, both.Callers || p.Callers
	}
	return Fault{
		RoundTrip: both.RoundTrip, TTL: both.TTL, Owed: both.Owed, Always: both.Always, Clocks: both.Clocks, Disks: both.Disks, Callers: both.Callers,
		ID:   texts(func(p Fault) string { return p.ID }, "+"),
		Name: texts(func(p Fault) string { return p.Name }, "+"),
		Does: texts(func(p Fault) string { return p.Does }, "; "),
		Needs: func(s *Scene) string {
			for _, p := range parts {
				if lacks := p.Needs(s); lacks != "" {
					return lacks
				}
			}
			if len(s.Clients) < len(parts) {
				return fmt.Sprintf("%d client processes: each fault breaks others", len(parts))
			}
			return ""
		},
		Run: func(ctx context.Context, s *Scene) error {
			errs := make([]error, len(parts))
			var running sync.WaitGroup
			for i, p := range parts {
				own := *s
				own.part, own.parts = i, len(parts)
				own.Rand = rand.New(rand.NewPCG(s.Rand.Uint64(), s.Rand.Uint64()))
				running.Go(func() {
					var err error
					failed := new(testserver.Site).Try(func() { err = p.Run(ctx, &own) }) // proxies fail by a panic
					errs[i] = errors.Join(err, failed)
				})
			}
			running.Wait()
			return errors.Join(errs...)
		},
	}, nil
}

// expectAll is the claim when several faults set in together: for each promise the
// weakest claim under one of them.
func expectAll(kind string, faults []string) (v Verdict, ok bool) {
	v = Verdict{Holds, Holds, Holds, Holds}
	for _, f := range faults {
		one, ok := Expect(kind, f)
		if !ok {
			return Verdict{}, false
		}
		v = Verdict{weaker(v.E, one.E), weaker(v.F, one.F), weaker(v.L, one.L), weaker(v.B, one.B)}
	}
	return v, true
}

// signs are the signs from the strongest claim to the weakest.
var signs = []Sign{Holds, Bounded, Breaks, NoSuch}

func weaker(a, b Sign) Sign {
	return slices.MaxFunc([]Sign{a, b}, func(a, b Sign) int { return cmp.Compare(slices.Index(signs, a), slices.Index(signs, b)) })
}
