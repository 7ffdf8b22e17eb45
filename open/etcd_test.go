package open

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

func TestEtcdURLs(t *testing.T) {
	t.Parallel()
	type target struct {
		endpoints, user, password, prefix string
		tls                               bool
	}
	for url, want := range map[string]target{
		"etcd://":                      {endpoints: "localhost:2379"},
		"etcd:///locks":                {endpoints: "localhost:2379", prefix: "locks"},
		"etcd://h1":                    {endpoints: "h1:2379"},
		"etcd://h1,h2:7000,[::1]:7/":   {endpoints: "h1:2379 h2:7000 [::1]:7"},
		"etcd://h1/app/locks/":         {endpoints: "h1:2379", prefix: "app/locks"},
		"etcd://u:p@h1/a%20b":          {endpoints: "h1:2379", user: "u", password: "p", prefix: "a b"},
		"ETCDS://h1,h2/a":              {endpoints: "h1:2379 h2:2379", prefix: "a", tls: true},
		"etcds://h1?server-name=x.org": {endpoints: "h1:2379", tls: true},
	} {
		a, err := parse(url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		got, err := a.etcd()
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		if have := (target{strings.Join(got.endpoints, " "), got.user, got.password, got.prefix, got.tls != nil}); have != want {
			t.Errorf("%s: %+v, want %+v", url, have, want)
		}
	}
}

func TestBadEtcdURLs(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"etcd:h1":                              `"//" is missing`,
		"etcd://h1?ca=/x":                      "need TLS",
		"etcd://u@h1":                          "belong together",
		"etcd://h1?password-env=BATON_NO_SUCH": "not set",
		"etcd://u:p@h1?password-file=" + os.DevNull: "the file is empty",
		"etcd://h1?passwrod-file=x":                 "did you mean password-file?",
		"etcd://h1?connect-timeout=0":               "not a duration above zero",
		"etcd://h1?prefix=a":                        "unknown parameter prefix",
		"etcd://h1/" + strings.Repeat("x", 513):     "no beginning of a key",
		"etdc://h1":                                 "did you mean etcd?",
	} {
		store, err := Store(t.Context(), url)
		if err == nil {
			store.Close()
			t.Errorf("%s: opened", url)
			continue
		}
		if _, ok := errors.AsType[*URLError](err); !ok || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a *URLError with %q", url, err, want)
		}
	}
}

func TestEtcdOpens(t *testing.T) {
	t.Parallel()
	server := testserver.SharedEtcd(t)
	store, err := Store(t.Context(), "etcd://"+server.Addr+"/"+t.Name())
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	claim := driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
	if _, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	answer, err := server.Do("/v3/kv/range", map[string]any{
		"key": []byte(t.Name() + "/k/"), "range_end": []byte(t.Name() + "/k0"), "count_only": true,
	})
	if err != nil || answer["count"] != "1" {
		t.Errorf("below the prefix and the key there are %v names (%v), want 1", answer["count"], err)
	}
}

func TestEtcdThatIsNotThere(t *testing.T) {
	t.Parallel()
	const secret = "a-secret-of-ours"
	for _, url := range []string{
		"etcd://" + testserver.FreeAddr(t),
		"etcd://someone:" + secret + "@" + testserver.FreeAddr(t),
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		store, err := Store(ctx, url+"?connect-timeout=300ms")
		cancel()
		if err == nil {
			store.Close()
			t.Errorf("%s: opened", url)
		} else if strings.Contains(err.Error(), secret) {
			t.Errorf("the error shows the password: %v", err)
		} else if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v", err)
		}
	}
}

func TestEtcdTLS(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key)
	addr := testserver.EtcdTLS(t, cert, key).Addr

	for query, want := range map[string]string{
		"&ca=" + cert + "&server-name=redis.internal&cert=" + cert + "&key=" + key: "",
		"&insecure=true&cert=" + cert + "&key=" + key:                              "",
		"&ca=" + cert + "&cert=" + cert + "&key=" + key:                            "127.0.0.1",
		"&server-name=redis.internal&cert=" + cert + "&key=" + key:                 "authority", // unknown
		"&ca=" + cert + "&server-name=redis.internal":                              "unavailable",
	} {
		store, err := Store(t.Context(), "etcds://"+addr+"?connect-timeout=20s"+query)
		switch {
		case err == nil:
			store.Close()
			if want != "" {
				t.Errorf("%s: opened, want an error about %q", query, want)
			}
		case want == "" || !strings.Contains(err.Error(), want):
			t.Errorf("%s: %v, want %q", query, err, want)
		case !errors.Is(err, driver.ErrUnavailable):
			t.Errorf("%s: %v, want ErrUnavailable", query, err)
		}
	}
}
