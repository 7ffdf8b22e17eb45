package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/client/v3/concurrency"
	"go.uber.org/zap"

	"github.com/batonhq/baton/internal/testserver"
)

var etcdRivals = slices.Concat([]rival{
	{
		name:  "raw",
		about: "the bare exchange on the etcd client: put a key, delete it; one client",
		open:  openEtcdRaw,
	},
	{
		name:  "mutex",
		about: "concurrency.Mutex of the etcd client, a new one for each acquisition, one client, one session for each goroutine",
		open:  openEtcdMutex,
	},
}, batonRivals("etcdstore", func(e *env) string { return "etcd://" + e.at["etcd"][0] }))

func etcdClient(e *env) (*clientv3.Client, error) {
	return clientv3.New(clientv3.Config{Endpoints: e.at["etcd"], DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
}

func openEtcdRaw(e *env, _ int) (*room, error) {
	c, err := etcdClient(e)
	if err != nil {
		return nil, err
	}
	return &room{
		seat: func(int) seat {
			return &pairSeat{
				lock: func(ctx context.Context, key string) error {
					_, err := c.Put(ctx, key, "v")
					return err
				},
				unlock: func(ctx context.Context, key string) error {
					_, err := c.Delete(ctx, key)
					return err
				},
			}
		},
		close: func() { _ = c.Close() }, // nothing is under way
	}, nil
}

func openEtcdMutex(e *env, goroutines int) (*room, error) {
	c, err := etcdClient(e)
	if err != nil {
		return nil, err
	}
	sessions := make([]*concurrency.Session, goroutines)
	for i := range sessions {
		if sessions[i], err = concurrency.NewSession(c, concurrency.WithTTL(int(ttl.Seconds()))); err != nil {
			_ = c.Close()
			return nil, err
		}
	}
	return &room{
		seat: func(i int) seat {
			var m *concurrency.Mutex
			return &pairSeat{
				lock: func(ctx context.Context, key string) error {
					m = concurrency.NewMutex(sessions[i], key)
					return m.Lock(ctx)
				},
				unlock: func(ctx context.Context, _ string) error { return m.Unlock(ctx) },
			}
		},
		close: func() {
			for _, s := range sessions {
				s.Orphan() // its keys are gone, and its lease expires
			}
			_ = c.Close()
		},
	}, nil
}

// startEtcd starts a server of one member that makes every commit durable.
func startEtcd(t testserver.TB, e *env) error {
	s := testserver.Etcd(t, "--unsafe-no-fsync=false")
	e.runs("etcd", &server{addrs: []string{s.Addr}, pids: []int{s.Pid()}})
	c, err := etcdClient(e)
	if err != nil {
		return err
	}
	t.Cleanup(func() { _ = c.Close() }) // the server is removed, too
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	status, err := c.Status(ctx, s.Addr)
	if err != nil {
		return err
	}
	v := e.servers["etcd"]
	v.about = "etcd " + status.Version + ", one member, with fsync"
	v.work = func() (w work, err error) {
		if w.requests, err = etcdMetric(s.Addr, "grpc_server_msg_received_total"); err != nil {
			return w, err
		}
		r, err := c.Get(context.Background(), "none")
		if err != nil {
			return w, err
		}
		w.commits = r.Header.Revision
		return w, nil
	}
	return nil
}

// etcdMetric returns a counter that the server publishes, summed over all its labels.
func etcdMetric(addr, name string) (sum int64, err error) {
	client := http.Client{Timeout: 10 * time.Second}
	r, err := client.Get("http://" + addr + "/metrics")
	if err != nil {
		return 0, err
	}
	defer r.Body.Close()
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return 0, err
	}
	found := false
	for line := range strings.Lines(string(text)) {
		if rest, ok := strings.CutPrefix(line, name); ok && (rest[0] == '{' || rest[0] == ' ') {
			v, err := strconv.ParseFloat(strings.TrimSpace(rest[strings.LastIndexByte(rest, ' '):]), 64)
			if err != nil {
				return 0, fmt.Errorf("read the metrics of etcd: %w", err)
			}
			sum += int64(v)
			found = true
		}
	}
	if !found {
		return 0, fmt.Errorf("etcd does not publish %s", name)
	}
	return sum, nil
}
