package zkstore

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// The verdicts on a random queue agree with its plainest reading: from the first on,
// each contender that fits beside all those before it.
func TestJudgeAgreesWithTheRules(t *testing.T) {
	t.Parallel()
	random := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		var names []string
		var want []bool
		used, capacity, open := int64(0), int64(0), true
		n := 1 + random.IntN(7)
		for i := range n {
			id := fmt.Sprintf("_c_%032x", i)
			w, c := driver.Whole, driver.Whole
			switch random.IntN(4) {
			case 0:
				names = append(names, fmt.Sprintf("%s-lock-%010d", id, 2*i), fmt.Sprintf("%s-__WRIT__%010d", id, 2*i+1))
			case 1: // a writer that became a reader
				w = 1
				names = append(names, fmt.Sprintf("%s-lock-%010d", id, 2*i), fmt.Sprintf("%s-__READ__%010d", id, 2*i+1))
			case 2:
				w = 1
				names = append(names, fmt.Sprintf("%s-__READ__%010d", id, 2*i))
			case 3:
				c = int64(2 + random.IntN(2)*2)
				w = 1 + random.Int64N(c)
				names = append(names, fmt.Sprintf("%s-perm.%d.%d-%010d", id, w, c, 2*i))
			}
			open = open && (i == 0 || c == capacity && used+w <= c)
			if open {
				capacity = c
				used += w
			}
			want = append(want, open)
		}
		random.Shuffle(len(names), func(i, j int) { names[i], names[j] = names[j], names[i] })
		all := queueOf(names)
		order(all)
		hold := 0
		for i, granted := range want {
			id := fmt.Sprintf("_c_%032x", i)
			v := judge(all, id)
			if v.missing || v.granted != granted || v.at != i {
				t.Fatalf("%v\nnumber %d: %+v, want granted %v", names, i, v, granted)
			}
			if !granted && len(v.gone) == 0 && len(v.any) == 0 {
				t.Fatalf("%v\nnumber %d waits for nothing", names, i)
			}
			if granted {
				hold++
			}
		}
		if got := holders(all); got != hold {
			t.Fatalf("%v\n%d hold, want %d", names, got, hold)
		}
		if v := judge(all, "_c_none"); !v.missing {
			t.Fatalf("one who is not there: %+v", v)
		}
	}
}

// The numbers of a queue do not wrap round at their end, they stick there: from then on
// only the transactions tell the order.
func TestNumbersAtTheirEnd(t *testing.T) {
	t.Parallel()
	testserver.NeedZooKeeper(t)
	testserver.NeedJar(t, slf4jJar, "libslf4j-java")
	dir, err := os.MkdirTemp("", "baton-seed-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	data := filepath.Join(dir, "data")
	if out, err := testserver.RunJava(t, []string{zooKeeperJar, slf4jJar}, "testdata/Seed.java", data, "/k", fmt.Sprint(math.MaxInt32-9)); err != nil {
		t.Fatalf("seed: %v\n%s", err, out)
	}
	server := testserver.ZooKeeperOn(t, dir)
	var stores []*Store
	for range 3 {
		stores = append(stores, longWaiting(openOn(t, "/", server.Addr)))
	}

	// A queue across the end: granted in the order of arrival, tokens rising.
	type place struct {
		s     *Store
		r     driver.Request
		hints <-chan driver.Hint
	}
	join := func(i int, waits bool) place {
		p := place{s: stores[i%3], r: writer("k")}
		if i%4 == 3 {
			p.r = reader("k")
		}
		p.hints = watching(t, p.s, p.r)
		if g := acquire(t, p.s, p.r); g.Waiting != waits {
			t.Fatalf("number %d: waiting %v, want %v", i, g.Waiting, waits)
		}
		return p
	}
	holder := join(0, false)
	var line []place
	for i := range 16 {
		line = append(line, join(i+1, true))
	}
	if all := strings.Join(queueIn(t, stores[0].conn, stores[0], "k"), " "); !strings.Contains(all, "2147483647") || !strings.Contains(all, "-21474836") {
		t.Errorf("the line does not cross the end: %s", all)
	}
	var token int64
	for i, p := range line {
		release(t, holder.s, holder.r)
		g, _ := awaitHeld(t, p.s, p.r, p.hints)
		if g.Token <= token {
			t.Errorf("number %d: token %d after %d", i+1, g.Token, token)
		}
		token = g.Token
		for j, later := range line[i+1:] {
			if later.r.Shared() && j == 0 && p.r.Shared() {
				continue
			}
			select {
			case h := <-later.hints:
				if h.Granted {
					t.Fatalf("number %d was granted beside number %d", i+j+2, i+1)
				}
			default:
			}
		}
		holder = p
	}
	release(t, holder.s, holder.r)

	// And from then on, one at a time.
	var inside int
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, s := range stores {
		wg.Go(func() {
			for range 20 {
				r := writer("k")
				r.Queue = false
				if _, err := s.Acquire(t.Context(), r); err != nil {
					if !errors.Is(err, driver.ErrHeld) {
						t.Error(err)
					}
					continue
				}
				mu.Lock()
				if inside++; inside > 1 {
					t.Error("two hold")
				}
				inside--
				mu.Unlock()
				if err := s.Release(t.Context(), r.Claim); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

const (
	zooKeeperJar = "/usr/share/java/zookeeper.jar"
	slf4jJar     = "/usr/share/java/slf4j-simple.jar"
)

// Nodes of other programs that are no contenders are ignored.
func TestForeignChildrenAreIgnored(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := longWaiting(openOn(t, "", server.Addr))
	direct := plain(t, server.Addr)
	r := writer("k")
	hold(t, s, r)
	release(t, s, r)
	for _, name := range []string{"0", "config", "lock-", "lock-7", "_c_x-lock-99999999999", "a-perm.0.3-0000000000", "x__WRIT__00000000zz"} {
		if _, err := direct.Create(s.parent("k")+"/"+name, []byte("data"), 0, s.acl); err != nil {
			t.Fatal(err)
		}
	}
	r, next := writer("k"), writer("k")
	hints := watching(t, s, next)
	hold(t, s, r)
	if g := acquire(t, s, next); !g.Waiting {
		t.Error("two hold")
	}
	release(t, s, r)
	awaitHeld(t, s, next, hints)
	info, err := s.Inspect(t.Context(), "k")
	if err != nil || len(info.Holders) != 1 || len(info.Waiters) != 0 {
		t.Errorf("%+v, %v", info, err)
	}
	release(t, s, next)
}
