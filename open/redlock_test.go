package open

import (
	"errors"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redlock"
)

func TestRedlockURLsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redlock:h1":                            `"//" is missing`,
		"redlock://":                            "names no host",
		"redlock://h1":                          "too few",
		"redlock://h1,h2":                       "too few",
		"redlock://h1,h2,h3,h4":                 "odd number",
		"redlock://h1,h2,h1":                    "h1:6379 and h1:6379 are the same server",
		"redlock://h1,h2,h1:6379":               "same server",
		"redlock://h1,h2,h3?longest-tl=1m":      "did you mean longest-ttl?",
		"redlock://h1,h2,h3?longest-ttl=1":      "not a duration",
		"redlock://h1,h2,h3?durable=often":      "neither true nor false",
		"redlock://h1,h2,h3?alow-replicas=true": "did you mean allow-replicas?",
		"redlock://h1,h2,h3?ca=/x":              "need TLS",
		"redlock://h1,h2,h3/x":                  "number of a database",
		"redis://h1?durable=true":               "unknown parameter durable",
		"redlok://h1,h2,h3":                     "did you mean redlock?",
		"redis+redlock://h1,h2,h3":              "write redlock://",
	} {
		store, err := Store(t.Context(), url)
		if err == nil {
			store.Close()
			t.Errorf("%s: accepted", url)
		} else if _, ok := errors.AsType[*URLError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %T %q, want a *URLError with %q", url, err, err, want)
		}
	}
}

func TestRedlockURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redlock://h3,h1:7000,h2/4": "h3:6379 h1:7000 h2:6379",
		"redlocks://u:p@h1,h2,h3":   "h1:6379 h2:6379 h3:6379",
	} {
		got, err := readRedis(t, url)
		if err != nil || strings.Join(got.addresses, " ") != want || got.kind != redisQuorum {
			t.Errorf("%s: %+v, %v, want %s", url, got, err, want)
			continue
		}
		if secure := strings.HasPrefix(url, "redlocks"); (got.tls != nil) != secure {
			t.Errorf("%s: TLS %v", url, got.tls)
		}
	}
}

// The password reaches the servers, and appears in no error.
func TestRedlockByURL(t *testing.T) {
	t.Parallel()
	nodes := testserver.RedisNodes(t, 3)
	for _, n := range nodes {
		if _, err := n.Do("CONFIG", "SET", "requirepass", "hunter22"); err != nil {
			t.Fatal(err)
		}
	}
	hosts := strings.Join(testserver.Addrs(nodes), ",")
	_, err := Store(t.Context(), "redlock://:wr0ngpass@"+hosts)
	if err == nil || strings.Contains(err.Error(), "wr0ngpass") {
		t.Errorf("a wrong password: %v", err)
	}
	url := "redlock://:hunter22@" + hosts + "?durable=true&prefix=p:"
	store, err := Store(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	claim := driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
	if _, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: driver.ClaimTTL}); err != nil {
		t.Fatal(err)
	}
	if err := store.Release(t.Context(), claim); err != nil {
		t.Error(err)
	}

	// One missing server is no obstacle, two are.
	nodes[0].Kill()
	if s, err := Store(t.Context(), url); err != nil {
		t.Errorf("with one server down: %v", err)
	} else {
		s.Close()
	}
	nodes[1].Kill()
	if s, err := Store(t.Context(), url); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("with two servers down: %v, want ErrUnavailable", err)
		if err == nil {
			s.Close()
		}
	} else if strings.Contains(err.Error(), "hunter22") {
		t.Errorf("the error shows the password: %v", err)
	}

	// A server whose replicas do not know its locks.
	primary := testserver.RedisNodes(t, 3)
	testserver.RedisReplica(t, primary[1])
	_, err = Store(t.Context(), "redlock://"+strings.Join(testserver.Addrs(primary), ",")+"?durable=true")
	if !errors.As(err, new(*redlock.ReplicatedError)) || !strings.Contains(err.Error(), "allow-replicas=true") {
		t.Errorf("with a replica: %v", err)
	}
	s, err := Store(t.Context(), "redlock://"+strings.Join(testserver.Addrs(primary), ",")+"?durable=true&allow-replicas=true")
	if err != nil {
		t.Fatalf("with a replica that is allowed: %v", err)
	}
	s.Close()
}
