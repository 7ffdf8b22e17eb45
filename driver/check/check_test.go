package check_test

import (
	"errors"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

func TestKey(t *testing.T) {
	for key, legal := range map[string]bool{
		"":                             false,
		"k":                            true,
		" ":                            true,
		"\x00":                         false,
		"a\nb":                         false,
		"a\x7f":                        false,
		"a\u0080":                      false,
		"a\u009f":                      false,
		"a\u00a0":                      true,
		"\u2028":                       true,
		"\xff":                         false,
		"é\xc3":                        false,
		"\ufffd":                       true,
		strings.Repeat("k", 512):       true,
		strings.Repeat("k", 513):       false,
		strings.Repeat("é", 256):       true,
		strings.Repeat("é", 257):       false,
		strings.Repeat("k", 511) + "é": false,
	} {
		err := check.Key(key)
		if _, ok := errors.AsType[*driver.KeyError](err); ok == legal || (err == nil) != legal {
			t.Errorf("Key(%.20q, %d bytes) = %v, want legal = %v", key, len(key), err, legal)
		}
	}
}

func FuzzKey(f *testing.F) {
	for _, key := range []string{"", "k", "a\x00", "é", "\xff", "\u0085"} {
		f.Add(key)
	}
	f.Fuzz(func(t *testing.T, key string) {
		legal := len(key) >= 1 && len(key) <= check.MaxKey && utf8.ValidString(key) && strings.IndexFunc(key, unicode.IsControl) < 0
		if err := check.Key(key); (err == nil) != legal {
			t.Errorf("Key(%q) = %v, want legal = %v", key, err, legal)
		}
	})
}

func TestNewIDsAreLegalAndDiffer(t *testing.T) {
	seen := map[string]bool{}
	for range 10_000 {
		id := driver.NewID()
		if len(id) != 22 {
			t.Fatalf("ID %q has %d characters", id, len(id))
		}
		if err := check.Claim(driver.Claim{Key: "k", ID: id}); err != nil {
			t.Fatal(err)
		}
		if seen[id] {
			t.Fatalf("ID %q was drawn twice", id)
		}
		seen[id] = true
	}
}

func TestRequest(t *testing.T) {
	all := driver.Traits{Store: "test", Shared: true, Permits: true, MinTTL: 10 * time.Millisecond, MaxTTL: time.Hour}
	few := driver.Traits{Store: "test"}
	const whole = driver.Whole
	for _, c := range []struct {
		what   string
		traits driver.Traits
		change func(*driver.Request)
		field  string // of the *RequestError
		none   bool   // errors.ErrUnsupported
	}{
		{what: "exclusive", traits: few},
		{what: "reader", traits: all, change: func(r *driver.Request) { r.Weight = 1 }},
		{what: "permits", traits: all, change: func(r *driver.Request) { r.Weight, r.Capacity = 3, 3 }},
		{what: "no readers", traits: few, change: func(r *driver.Request) { r.Weight = 1 }, none: true},
		{what: "no permits", traits: few, change: func(r *driver.Request) { r.Weight, r.Capacity = 1, 3 }, none: true},
		{what: "several readers", traits: all, change: func(r *driver.Request) { r.Weight = 2 }, field: "weight"},
		{what: "too many", traits: all, change: func(r *driver.Request) { r.Weight, r.Capacity = 4, 3 }, field: "weight"},
		{what: "huge", traits: all, change: func(r *driver.Request) { r.Weight, r.Capacity = 1, whole-1 }, field: "weight"},
		{what: "nothing", traits: all, change: func(r *driver.Request) { r.Weight = 0 }, field: "weight"},
		{what: "shortest", traits: all, change: func(r *driver.Request) { r.TTL = 10 * time.Millisecond }},
		{what: "too short", traits: all, change: func(r *driver.Request) { r.TTL = 10*time.Millisecond - 1 }, field: "ttl"},
		{what: "longest", traits: all, change: func(r *driver.Request) { r.TTL = time.Hour }},
		{what: "too long", traits: all, change: func(r *driver.Request) { r.TTL = time.Hour + 1 }, field: "ttl"},
		{what: "unbounded", traits: few, change: func(r *driver.Request) { r.TTL = 1 << 62 }},
		{what: "no TTL", traits: few, change: func(r *driver.Request) { r.TTL = 0 }, field: "ttl"},
		{what: "a bounded queue", traits: few, change: func(r *driver.Request) { r.Queue, r.MaxWaiting = true, 1 }},
		{what: "a queue of less than nothing", traits: few, change: func(r *driver.Request) { r.Queue, r.MaxWaiting = true, -1 }, field: "waiting"},
		{what: "no ID", traits: few, change: func(r *driver.Request) { r.ID = "" }, field: "id"},
		{what: "odd ID", traits: few, change: func(r *driver.Request) { r.ID = "secret!" }, field: "id"},
		{what: "odd owner", traits: few, change: func(r *driver.Request) { r.Owner = "a\tb" }, field: "owner"},
		{what: "owner of 128", traits: few, change: func(r *driver.Request) { r.Owner = strings.Repeat("ö", 64) }},
		{what: "owner of 129", traits: few, change: func(r *driver.Request) { r.Owner = strings.Repeat("x", 129) }, field: "owner"},
	} {
		r := driver.Request{Claim: driver.Claim{Key: "k", ID: "id", Owner: "me: 1", Weight: whole, Capacity: whole}, TTL: time.Second}
		if c.change != nil {
			c.change(&r)
		}
		err := check.Request(r, c.traits)
		e, isRequest := errors.AsType[*driver.RequestError](err)
		switch {
		case c.field != "" && (!isRequest || e.Field != c.field || strings.Contains(err.Error(), "secret")):
			t.Errorf("%s: %v, want a *RequestError about the %s", c.what, err, c.field)
		case c.none && !errors.Is(err, errors.ErrUnsupported):
			t.Errorf("%s: %v, want errors.ErrUnsupported", c.what, err)
		case c.field == "" && !c.none && err != nil:
			t.Errorf("%s: %v", c.what, err)
		}
	}
}
