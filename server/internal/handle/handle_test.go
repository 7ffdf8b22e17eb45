package handle

import (
	"bytes"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/mutants"
)

func testKeys(t testing.TB, secrets ...string) Keys {
	t.Helper()
	var all [][]byte
	for _, s := range secrets {
		all = append(all, []byte(s))
	}
	k, err := NewKeys(all...)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// someHandles are of every kind.
func someHandles() []Handle {
	exclusive := driver.Claim{Key: "k", ID: "AAAAAAAAAAAAAAAAAAAAAA", Weight: driver.Whole, Capacity: driver.Whole, Ticket: -7}
	reader, permits, longest := exclusive, exclusive, exclusive
	reader.Weight = 1
	permits.Weight, permits.Capacity, permits.Ticket = 2, 10, 1<<62
	longest.Key, longest.ID = strings.Repeat("é", 256), strings.Repeat("x", 64)
	return []Handle{
		{Claim: exclusive, Token: 64, TTL: 1},
		{Claim: reader, TTL: time.Second},
		{Claim: permits, Token: 1 << 62, TTL: math.MaxInt64},
		{Claim: longest, Token: -1, TTL: time.Hour, Once: true},
	}
}

func TestHandles(t *testing.T) {
	t.Parallel()
	k := testKeys(t, "0123456789abcdef")
	for _, h := range someHandles() {
		text := k.Seal("team-a", h)
		if len(text) > maxLen {
			t.Errorf("a handle has %d bytes, more than %d", len(text), maxLen)
		}
		if strings.Contains(text, h.Claim.ID) {
			t.Error("a handle shows its ID")
		}
		if got, err := testKeys(t, "0123456789abcdef").Open("team-a", text); err != nil || got != h {
			t.Errorf("%+v became %+v, %v", h, got, err)
		}
		if text == k.Seal("team-a", h) {
			t.Error("two handles of a lease are the same")
		}
		bad := map[string]string{
			"of another caller": "", "empty": "", "without its prefix": strings.TrimPrefix(text, prefix),
			"longer": text + "A", "with a line end": text + "\n", "padded": text + "=", "short": prefix + "AAAA",
			"upper": strings.ToUpper(text), "huge": prefix + strings.Repeat("A", maxLen),
		}
		for name, text := range bad {
			if _, err := k.Open("team-a", text); err == nil {
				t.Errorf("a handle is opened that is %s", name)
			}
		}
		for _, caller := range []string{"", "team-b", "team-a "} {
			if _, err := k.Open(caller, text); err == nil {
				t.Errorf("the handle of team-a is opened for %q", caller)
			}
		}
		if _, err := testKeys(t, "another secret 1").Open("team-a", text); err == nil {
			t.Error("a handle is opened with another secret")
		}
		for i := range len(text) {
			changed := []byte(text)
			changed[i] ^= 1
			if _, err := k.Open("team-a", string(changed)); err == nil {
				t.Errorf("a handle is opened whose byte %d is another", i)
			}
		}
	}
}

// Of several secrets the first seals, and each opens.
func TestSecrets(t *testing.T) {
	t.Parallel()
	const before, after = "0123456789abcdef", "another secret 1"
	both, h := testKeys(t, after, before), someHandles()[0]
	old := testKeys(t, before).Seal("a", h)
	if got, err := both.Open("a", old); err != nil || got != h {
		t.Errorf("the handle of the secret before: %+v, %v", got, err)
	}
	if _, err := both.Open("b", old); err == nil {
		t.Error("it is opened for another caller")
	}
	next := both.Seal("a", h)
	if got, err := testKeys(t, after).Open("a", next); err != nil || got != h {
		t.Errorf("a new handle is not sealed by the first secret: %+v, %v", got, err)
	}
	ids := both.ClaimIDs("a", "op", h.Claim, time.Second)
	if want := []string{testKeys(t, after)[0].claimID("a", "op", h.Claim, time.Second), testKeys(t, before)[0].claimID("a", "op", h.Claim, time.Second)}; !slices.Equal(ids, want) {
		t.Errorf("the IDs are %q, want %q", ids, want)
	}
}

// The IDs of two callers, two keys, two ops, two kinds of lock or two TTLs always differ.
func TestClaimIDsDiffer(t *testing.T) {
	t.Parallel()
	k := testKeys(t, "0123456789abcdef")
	seen := make(map[string][3]string)
	parts := []string{"", "a", "b", "ab", "a\x00", "aaa"}
	for _, caller := range parts {
		for _, key := range parts {
			for _, op := range parts {
				c := driver.Claim{Key: key, Weight: driver.Whole, Capacity: driver.Whole}
				id := k[0].claimID(caller, op, c, time.Second)
				if other, twice := seen[id]; twice {
					t.Errorf("%q and %q have the same ID", other, [3]string{caller, key, op})
				}
				seen[id] = [3]string{caller, key, op}
				if len(id) != 22 || id != k[0].claimID(caller, op, c, time.Second) {
					t.Errorf("the ID is %q, and differs from call to call", id)
				}
			}
		}
	}
	c := driver.Claim{Key: "k", Weight: 1, Capacity: 10}
	id := k[0].claimID("a", "op", c, time.Second)
	if testKeys(t, "another secret 1")[0].claimID("a", "op", c, time.Second) == id {
		t.Error("an ID does not depend on the secret")
	}
	heavier, wider := c, c
	heavier.Weight, wider.Capacity = 2, 11
	if k[0].claimID("a", "op", heavier, time.Second) == id || k[0].claimID("a", "op", wider, time.Second) == id {
		t.Error("an ID does not depend on the kind of lock")
	}
	if k[0].claimID("a", "op", c, time.Minute) == id {
		t.Error("an ID does not depend on the TTL")
	}
	c.ID, c.Ticket, c.Owner = "x", 1, "y"
	if k[0].claimID("a", "op", c, time.Second) != id {
		t.Error("an ID depends on what changes")
	}
}

// FuzzOpen opens texts that are no handles.
func FuzzOpen(f *testing.F) {
	k := testKeys(f, "0123456789abcdef")
	all := someHandles()
	for _, h := range all {
		f.Add(k.Seal("a", h))
	}
	f.Add(prefix)
	f.Fuzz(func(t *testing.T, text string) {
		mutants.Of([]byte(text), func(text []byte) {
			if h, err := k.Open("a", string(text)); err == nil && !slices.Contains(all, h) { // which other processes have sealed, too
				t.Errorf("%q is opened, and was not sealed", text)
			}
		})
	})
}

// FuzzDecode reads what a later version might have sealed.
func FuzzDecode(f *testing.F) {
	for _, h := range someHandles() {
		f.Add(h.encode())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		mutants.Of(text, func(text []byte) {
			h, err := decode(text)
			if err == nil && !bytes.Equal(h.encode(), text) {
				t.Errorf("%x became %+v, which is %x", text, h, h.encode())
			}
		})
	})
}
