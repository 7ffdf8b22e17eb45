package deploy

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// Two clients of every kind exclude each other, each through its own proxies.
func TestKinds(t *testing.T) {
	testserver.Long(t)
	for _, k := range Kinds {
		t.Run(k.Name, func(t *testing.T) {
			t.Parallel()
			clients := 2
			if k.Name == "memory" {
				clients = 1
			}
			d := Start(t, k.Name, clients)
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			last := int64(0)
			for i := range clients {
				locks := newLocker(t, d.URL(i), MaxTTL)
				lease, err := locks.Lock(ctx, "k") // after the previous client's last message, if any, has expired
				if err != nil {
					t.Fatal(err)
				}
				if lease.Token() <= last {
					t.Errorf("token %d after %d", lease.Token(), last)
				}
				last = lease.Token()
				n, err := d.Keys()
				if err != nil || n == 0 && k.Name != "memory" {
					t.Errorf("%d keys, %v, while a lock is held", n, err)
				}
				held, err := d.Held()
				if err != nil || len(held) == 0 && k.Name != "memory" {
					t.Errorf("%q, %v, while a lock is held", held, err)
				}
				proxies := d.Proxies(i)
				if len(proxies) != len(d.Servers) {
					t.Errorf("%d proxies for %d servers", len(proxies), len(d.Servers))
				}
				if err := lease.Unlock(); err != nil {
					t.Error(err)
				}
				if err := await(func() error { // requests at other servers may arrive late
					if held, err := d.Held(); err != nil || len(held) > 0 {
						return fmt.Errorf("%q, %v, when nothing is held", held, err)
					}
					return nil
				}); err != nil {
					t.Error(err)
				}
				if len(proxies) == 0 {
					continue
				}
				for _, p := range proxies {
					p.Swallow(faultproxy.ToServer)
				}
				short, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
				if _, err := locks.Lock(short, "k"); err == nil {
					t.Error("there is a way past the proxies")
				}
				cancel()
				for _, p := range proxies {
					p.Heal()
				}
			}
		})
	}
}

// Plain servers load no library.
func TestPlainServers(t *testing.T) {
	testserver.Long(t)
	testserver.NeedRedis(t)
	for _, clocks := range []bool{true, false} {
		d, err := Open("redis", Options{Clients: 1, Clocks: clocks})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", d.Servers[0].Pid()))
		if err != nil {
			t.Fatal(err)
		}
		if loads := strings.Contains(string(maps), "faketime"); loads != (d.Shift != nil) || !clocks && loads {
			t.Errorf("asked for clocks %v: they can be set %v, a library is loaded %v", clocks, d.Shift != nil, loads)
		}
	}
}

func TestOpenSaysWhatIsWrong(t *testing.T) {
	if _, err := Open("redsi", Options{Clients: 1}); err == nil || !strings.Contains(err.Error(), `"redsi"`) || !strings.Contains(err.Error(), "redis, ") {
		t.Errorf("an unknown kind: %v", err)
	}
	if _, err := Open("memory", Options{Clients: 2}); err == nil || !strings.Contains(err.Error(), "one process") {
		t.Errorf("memory that is shared: %v", err)
	}
	t.Setenv("PATH", t.TempDir())
	if _, err := Open("redis", Options{Clients: 1}); !errors.Is(err, ErrNotInstalled) || !strings.Contains(err.Error(), "install the package redis-server") {
		t.Errorf("a server that is not installed: %v", err)
	}
}
