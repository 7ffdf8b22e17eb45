package open

import (
	"context"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/zkstore"
)

// zooKeeper is the content of a URL.
type zooKeeper struct {
	zkstore.Server
	zkstore.Config
}

func readZooKeeper(t *testing.T, url string) (zooKeeper, time.Duration, error) {
	t.Helper()
	a, err := parse(url)
	if err != nil {
		return zooKeeper{}, 0, err
	}
	at, cfg, patience, err := a.zooKeeper()
	return zooKeeper{at, cfg}, patience, err
}

func TestZooKeeperURLs(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "password")
	write(t, file, "from file\n")
	for url, want := range map[string]zooKeeper{
		"zk://":                                  {zkstore.Server{Addrs: []string{"localhost:2181"}}, zkstore.Config{Root: "/"}},
		"zk://h":                                 {zkstore.Server{Addrs: []string{"h:2181"}}, zkstore.Config{Root: "/"}},
		"ZK://h1,h2:2182,[::1]/":                 {zkstore.Server{Addrs: []string{"h1:2181", "h2:2182", "[::1]:2181"}}, zkstore.Config{Root: "/"}},
		"zk://h/a/b%20c/":                        {zkstore.Server{Addrs: []string{"h:2181"}}, zkstore.Config{Root: "/a/b c"}},
		"zk://u:p%2Fq@h/a":                       {zkstore.Server{Addrs: []string{"h:2181"}, User: "u", Password: "p/q"}, zkstore.Config{Root: "/a"}},
		"zk://u@h?password-file=" + file:         {zkstore.Server{Addrs: []string{"h:2181"}, User: "u", Password: "from file"}, zkstore.Config{Root: "/"}},
		"zk://u:p@h?acl=world&session=4s":        {zkstore.Server{Addrs: []string{"h:2181"}, User: "u", Password: "p", Session: 4 * time.Second}, zkstore.Config{Root: "/", ACL: zk.WorldACL(zk.PermAll)}},
		"zk://u:p@h?acl=user&connect-timeout=1s": {zkstore.Server{Addrs: []string{"h:2181"}, User: "u", Password: "p"}, zkstore.Config{Root: "/"}},
	} {
		if want.Session == 0 {
			want.Session = zkstore.DefaultSession
		}
		got, _, err := readZooKeeper(t, url)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n got %+v, %v\nwant %+v", url, got, err, want)
		}
	}
	if o, _, err := readZooKeeper(t, "zk://h1,h2?tls=true"); err != nil || o.TLS == nil {
		t.Errorf("with TLS: %+v, %v", o, err)
	}
	if _, patience, err := readZooKeeper(t, "zk://h?connect-timeout=3s"); err != nil || patience != 3*time.Second {
		t.Errorf("with a time to connect: %v, %v", patience, err)
	}
}

func TestZooKeeperURLsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"zk:h":                          `"//" is missing`,
		"zk://h/a//b":                   "two slashes",
		"zk://h/a/../b":                 `no "." and ".."`,
		"zk://h/zookeeper/locks":        "belongs to ZooKeeper itself",
		"zk://u@h":                      "belong together",
		"zk://:p@h":                     "belong together",
		"zk://u%3Ab:p@h":                `has no ":"`,
		"zk://h?acl=user":               "acl=user needs a user name",
		"zk://h?acl=nobody":             "neither user nor world",
		"zk://h?sesion=3s":              "did you mean session?",
		"zk://h?session=0s":             "not a duration",
		"zk://u:p@h?password-env=HOME":  "given twice",
		"zk://h?ca=/nowhere/at/all.pem": "parameter ca",
	} {
		if _, _, err := readZooKeeper(t, url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want it to say %q", url, err, want)
		}
	}
}

func TestZooKeeperIsOpened(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	store, err := Store(t.Context(), "zk://"+server.Addr+"/opened?session=20s")
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if got := store.Traits().MaxTTL; got != 10*time.Second {
		t.Errorf("with a session of 20 s the longest TTL is %v, want half of it", got)
	}
	c := driver.Claim{Key: "k", ID: driver.NewID(), Weight: driver.Whole, Capacity: driver.Whole}
	if _, err := store.Acquire(t.Context(), driver.Request{Claim: c, TTL: 10 * time.Second}); err != nil {
		t.Fatal(err)
	}
	if err := store.Release(t.Context(), c); err != nil {
		t.Error(err)
	}
}

// A missing server is an error in time, which shows no secret.
func TestZooKeeperIsNotThere(t *testing.T) {
	t.Parallel()
	addr := testserver.FreeAddr(t)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	_, err := Store(ctx, "zk://joe:"+secret+"@"+addr+"?connect-timeout=200ms")
	if err == nil || strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "joe") || !strings.Contains(err.Error(), addr) {
		t.Errorf("error: %v", err)
	}
	if ctx.Err() != nil {
		t.Error("it took until the caller's own end")
	}
}
