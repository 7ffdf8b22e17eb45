package redisstore

import (
	"errors"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver"
)

// Trap 12: everything that belongs to a lock lies on its slot, whatever braces
// its name has, and different locks never share a name.
func TestSideKeysOfKeysWithBraces(t *testing.T) {
	t.Parallel()
	keys := []string{
		"a", "a}b", "{}x", "}{", "{", "}", "{}", "a{b", "{a}", "{a}b", "x{a}y{b}z", "{{a}}", "{a", "a}", "a}:{a}", "{a}:a", "{a}:{a}",
		"0", "{0}", "}0", "baton:deploy", "baton:", "q:{a}",
	}
	for _, prefix := range []string{"", "app:", "a}p:", "{app}:", "{app}"} {
		for _, cluster := range []bool{false, true} {
			ns, err := newNames(prefix, cluster)
			if err != nil {
				t.Fatal(err)
			}
			owner := map[string]string{}
			for _, key := range keys {
				n, err := ns.of(key)
				if err != nil {
					t.Fatalf("key %q: %v", key, err)
				}
				for i, name := range n.full() {
					if name == n.counter || name == n.high {
						if cluster && slot(name) != slot(n.lock) {
							t.Errorf("prefix %q: %q is on another slot than lock %q", prefix, name, n.lock)
						}
						continue
					}
					if slot(name) != slot(n.lock) {
						t.Errorf("prefix %q: %q is on another slot than lock %q", prefix, name, n.lock)
					}
					if other, taken := owner[name]; taken {
						t.Errorf("prefix %q: %q belongs to %q and to %q", prefix, name, other, key)
					}
					owner[name] = key
					if i == 3 {
						if back, ok := ns.keyOf("q:", name); !ok || back != key {
							t.Errorf("prefix %q: the queue %q is read back as that of %q, want %q", prefix, name, back, key)
						}
					}
				}
			}
			for _, key := range append(keys, "baton:T", "baton:q:{a}", "baton:r:{a}", "baton:o:{a}", "r:{a}", "o:{a}", "d:x:{a}", "x:{a}", "x:a") {
				n := ns.beside(key)
				if back, ok := ns.keyOf("o:", n.record()); !ok || back != key {
					t.Errorf("prefix %q: the record %q is read back as that of %q, want %q", prefix, n.record(), back, key)
				}
				for _, name := range []string{n.limit(), n.record(), n.id("x"), n.id("x-"), n.id("r")} {
					if slot(name) != slot(n.lock) {
						t.Errorf("prefix %q: %q is on another slot than limit %q", prefix, name, key)
					}
					if other, taken := owner[name]; taken {
						t.Errorf("prefix %q: %q belongs to %q and to limit %q", prefix, name, other, key)
					}
					owner[name] = key
					if lock, ok := strings.CutPrefix(name, prefix); ok {
						if _, err := ns.of(lock); err == nil {
							t.Errorf("prefix %q: %q of limit %q may be a lock", prefix, name, key)
						}
					}
				}
			}
		}
	}
	for _, key := range []string{"app:baton:T", "a baton:deploy, baton:q:{x}", "baton:T", "baton:H", "baton:V", "baton:T:{1}", "baton:q:{a}", "baton:w:", "baton:s:{a}:b", "baton:i", "baton:r:{a}", "baton:d:x:{a}", "baton:o:{a}"} {
		ns, _ := newNames("", false)
		if _, err := ns.of(key); err == nil {
			t.Errorf("key %q is accepted, and may be one of the store's own", key)
		}
	}
	// Two programs, one of them with a prefix: a lock of one must not be the other's
	// counter.
	ns, err := newNames("b", false)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := ns.of("aton:T"); err == nil {
		t.Errorf("with a prefix %q is accepted as the name of a lock", n.lock)
	}
	for _, prefix := range []string{"baton:", "app:baton:", "mybaton:", "baton:q:"} {
		if _, err := newNames(prefix, false); !errors.As(err, new(*driver.KeyError)) {
			t.Errorf("prefix %q: %v, want a KeyError: others keep their own there", prefix, err)
		}
	}
	for _, prefix := range []string{"{", "{}x", "a{b"} {
		if _, err := newNames(prefix, true); err == nil {
			t.Errorf("prefix %q is accepted, which spreads side keys over slots", prefix)
		}
	}
	for s, tag := range slotTags() {
		if crc16(tag)%slots != uint16(s) {
			t.Fatalf("tag %q is not on slot %d", tag, s)
		}
	}
}
