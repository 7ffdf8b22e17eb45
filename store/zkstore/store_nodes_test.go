package zkstore

import (
	"fmt"
	"path"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/testserver"
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

// A key with a slash is no child of the key before the slash.
func TestNestedKeysDoNotInterfere(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	s := openOn(t, "", server.Addr)
	hold(t, s, writer("a"))
	hold(t, s, writer("a/0"))
	hold(t, s, writer("a/0/b"))
	for _, n := range queueIn(t, s.conn, s, "a") {
		if _, ok := parse(n); !ok {
			t.Errorf("the line of %q has a child %q", "a", n)
		}
	}
}

// A parent is a container, which the server removes when it has been empty for
// a while.
func TestParentsAreContainers(t *testing.T) {
	t.Parallel()
	server := testserver.ZooKeeper(t, "-Dznode.container.checkIntervalMs=200")
	s := openOn(t, "", server.Addr)
	r := writer("k")
	token := hold(t, s, r).Token
	release(t, s, r)
	eventually(t, "the server removes the parent", func() bool {
		ok, _, err := s.conn.Exists(s.parent("k"))
		return err == nil && !ok
	})
	// The store takes it to exist.
	if g := hold(t, s, writer("k")); g.Token <= token {
		t.Errorf("token %d after %d", g.Token, token)
	}
}
