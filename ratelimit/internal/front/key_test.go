package front

import (
	"net/url"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver/check"
)

func TestKeys(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", maxPart+1)
	for _, c := range []struct{ got, want string }{
		{Part("", "GET /items/{id}"), "GET /items/%7Bid%7D"},
		{Part("x-tenant", "acme"), "x-tenant=acme"},
		{Part("user", "a|b=c#d%e\x00\u00e9"), "user=a%7Cb%3Dc%23d%25e%00%C3%A9"},
		{Part("user", long), "user=" + hash(long)},
		{Part("user", strings.Repeat("{", 40)), "user=" + hash(strings.Repeat("{", 40))},
		{Join("a", "b"), "a|b"},
		{Join(strings.Repeat("x", maxKey), "b"), hash(strings.Repeat("x", maxKey) + "|b")},
	} {
		if c.got != c.want {
			t.Errorf("%s, want %s", c.got, c.want)
		}
	}
	if s := Secret("x-api-key", "hunter2"); strings.Contains(s, "hunter2") || s != Secret("x-api-key", "hunter2") || s == Secret("x-api-key", "hunter3") {
		t.Errorf("secret %s", s)
	}
}

// One token gives one key in every spelling, and another token another key.
func TestCredentials(t *testing.T) {
	t.Parallel()
	owner := map[string]string{}
	for _, same := range [][]string{
		{"Bearer hunter2", "bearer hunter2", "BEARER hunter2", "Bearer  hunter2", "Bearer\thunter2", " Bearer hunter2 "},
		{"Bearer Hunter2"},
		{"Basic YTpi", "basic YTpi", "BASIC   YTpi"},
		{"Basic YTo=", "Basic YTp=", "Basic YTo"}, // "a:", and bits that belong to no byte
		{`Digest username="a", realm="b"`, `digest  username="a",  realm="b"`},
		{"Bearer YTo="},
		{"hunter2", " hunter2\t"},
		{"Hunter2"},
		{"Bearer"},
		{"bearer"},
	} {
		for _, header := range []string{"authorization", "proxy-authorization"} {
			key := Careful(header, Part)(header, same[0])
			if strings.Contains(key, "unter2") || owner[key] != "" {
				t.Errorf("%q has the key %q, as %q has", same[0], key, owner[key])
			}
			owner[key] = same[0]
			for _, spelling := range same {
				if got := Careful(header, Part)(header, spelling); got != key {
					t.Errorf("%q and %q are counted apart", same[0], spelling)
				}
			}
		}
	}
	if Careful("x-tenant", Part)("x-tenant", "Bearer a") != "x-tenant=Bearer a" {
		t.Error("what is no Authorization is changed")
	}
}

// No value gives a key that a store refuses, a key on another slot of a Redis
// Cluster than its neighbours, or the key of another value.
func FuzzPart(f *testing.F) {
	for _, s := range []string{"", "acme", "{}", "#", "a|b", "\xff", "%7B", strings.Repeat("\x00", 40), hash("acme")} {
		f.Add(s, "acme")
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		key := Part("name", a)
		if err := check.Key(strings.Repeat("n", 40) + "/{" + Join(key, key, key) + "}"); err != nil {
			t.Error(err)
		}
		if strings.ContainsAny(key, "{}|") {
			t.Errorf("%q is %q", a, key)
		}
		if v := strings.TrimPrefix(key, "name="); !strings.HasPrefix(v, "#") {
			if back, err := url.PathUnescape(v); err != nil || back != a {
				t.Errorf("%q is %q, which reads %q, %v", a, key, back, err)
			}
		}
		if a != b && key == Part("name", b) {
			t.Errorf("%q and %q are both %q", a, b, key)
		}
	})
}
