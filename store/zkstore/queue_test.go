package zkstore

import (
	"fmt"
	"math/rand/v2"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

func TestNames(t *testing.T) {
	t.Parallel()
	const whole = driver.Whole
	for name, want := range map[string]child{
		"_c_0a-lock-0000000007":                           {"_c_0a", markLock, whole, whole, 7},
		"_c_1f2e-33-4a-__WRIT__0000000008":                {"_c_1f2e-33-4a", markWrite, whole, whole, 8},
		"_c_0a-__READ__2147483647":                        {"_c_0a", markRead, 1, whole, 2147483647},
		"_c_0a-__READ__-2147483648":                       {"_c_0a", markRead, 1, whole, -2147483648},
		"_c_0a-lock--000000001":                           {"_c_0a", markLock, whole, whole, -1},
		"_c_0a-perm.2.10-0000000010":                      {"_c_0a", markPerm, 2, 10, 10},
		"_c_0a-perm.2.10--000000010":                      {"_c_0a", markPerm, 2, 10, -10},
		"e0f5__lock__0000000003":                          {"e0f5", markKazoo, whole, whole, 3},
		"e0f5__rlock__0000000003":                         {"e0f5", markKazooRead, 1, whole, 3},
		"lock-0000000001":                                 {"", markLock, whole, whole, 1},
		"_c_0a-lock-7":                                    {},
		"_c_0a-lock-2147483648":                           {},
		"_c_0a-lock-+000000001":                           {},
		"_c_0a-lock-00000000001":                          {},
		"_c_0a-perm.11.10-0000000010":                     {},
		"_c_0a-perm.0.10-0000000010":                      {},
		"_c_0a-perm.1-0000000010":                         {},
		"0":                                               {},
		"0000000000":                                      {},
		"lease-0000000000":                                {},
		fmt.Sprint("_c_0a-perm.1.", whole, "-0000000010"): {},
	} {
		got, ok := parse(name)
		if ok != (want != child{}) || ok && got != want {
			t.Errorf("%s: %+v, %v, want %+v", name, got, ok, want)
		}
	}
}

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
		all := line(names)
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

func FuzzEscape(f *testing.F) {
	for _, key := range []string{"a", "a/0", ".", "..", "zookeeper", "%", "%2F", "a%", "é", "🔒", "\ufffd", "\uf8ff", "zookeeper/x", "...", "\ud7ff\ue000"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		if back, ok := unescape(key); ok && escape(back) != key {
			t.Errorf("%q is taken for the name of %q, which is %q", key, back, escape(back))
		}
		if check.Key(key) != nil {
			return
		}
		name := escape(key)
		if back, ok := unescape(name); !ok || back != key {
			t.Errorf("%q became %q and %q (%v)", key, name, back, ok)
		}
		if strings.ContainsRune(name, '/') || name == "." || name == ".." || name == "zookeeper" || path.Base(name) != name || !utf8.ValidString(name) {
			t.Errorf("%q became %q, which is no name of a node", key, name)
		}
		for _, r := range name {
			if r < ' ' || r >= 0x7f && r <= 0x9f || r >= 0xd800 {
				t.Errorf("%q became %q, with %U", key, name, r)
			}
		}
	})
}
