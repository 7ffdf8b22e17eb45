package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/internal/testserver"
)

var zookeeperRivals = slices.Concat([]rival{
	{
		name:  "raw",
		about: "the bare exchange on go-zookeeper/zk: create an ephemeral sequential node below a parent that is there, delete it; one session",
		open:  openZooKeeperRaw,
	},
	{
		name:  "zk-lock",
		about: "zk.Lock of go-zookeeper/zk, one for each goroutine, all on one session; its parent nodes stay for ever",
		open:  openZooKeeperLock,
	},
}, batonRivals("zkstore", func(e *env) string { return "zk://" + e.at["zk"][0] }))

// zookeeperClient opens a session that is established.
func zookeeperClient(e *env) (*zk.Conn, error) {
	conn, events, err := zk.Connect(e.at["zk"], ttl, zk.WithLogger(silent{}))
	if err != nil {
		return nil, err
	}
	patience := time.After(10 * time.Second)
	for {
		select {
		case ev := <-events:
			if ev.State == zk.StateHasSession {
				return conn, nil
			}
		case <-patience:
			conn.Close()
			return nil, errors.New("no session with ZooKeeper after 10 s")
		}
	}
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// flat makes a key the name of a single node.
func flat(key string) string { return strings.ReplaceAll(key, "/", "-") }

func openZooKeeperRaw(e *env, _ int) (*room, error) {
	conn, err := zookeeperClient(e)
	if err != nil {
		return nil, err
	}
	const parent = "/bench-raw"
	if _, err := conn.Create(parent, nil, 0, zk.WorldACL(zk.PermAll)); err != nil && !errors.Is(err, zk.ErrNodeExists) {
		conn.Close()
		return nil, err
	}
	return &room{
		seat: func(int) seat {
			var node string
			return &pairSeat{
				lock: func(_ context.Context, key string) (err error) {
					node, err = conn.Create(parent+"/"+flat(key)+"-", nil, zk.FlagEphemeral|zk.FlagSequence, zk.WorldACL(zk.PermAll))
					return err
				},
				unlock: func(context.Context, string) error { return conn.Delete(node, -1) },
			}
		},
		close: conn.Close,
	}, nil
}

func openZooKeeperLock(e *env, _ int) (*room, error) {
	conn, err := zookeeperClient(e)
	if err != nil {
		return nil, err
	}
	return &room{
		seat: func(int) seat {
			var held *zk.Lock
			return &pairSeat{
				lock: func(ctx context.Context, key string) error {
					// The client cannot be told to give up.
					defer context.AfterFunc(ctx, conn.Close)()
					held = zk.NewLock(conn, "/"+flat(key), zk.WorldACL(zk.PermAll))
					return held.Lock()
				},
				unlock: func(context.Context, string) error { return held.Unlock() },
			}
		},
		close: conn.Close,
	}, nil
}

// startZooKeeper starts a server that makes every transaction durable.
func startZooKeeper(t testserver.TB, e *env) error {
	s := testserver.ZooKeeper(t, "-Dzookeeper.forceSync=yes")
	v := &server{addrs: []string{s.Addr}, pids: []int{s.Pid()}}
	v.work = func() (w work, err error) {
		text, err := s.Ask("srvr")
		if err != nil {
			return w, err
		}
		if w.requests, err = strconv.ParseInt(textAfter(text, "Received: "), 10, 64); err != nil {
			return w, fmt.Errorf("read the statistics of ZooKeeper: %w", err)
		}
		// Each transaction takes one number.
		if w.commits, err = strconv.ParseInt(strings.TrimPrefix(textAfter(text, "Zxid: "), "0x"), 16, 64); err != nil {
			return w, fmt.Errorf("read the statistics of ZooKeeper: %w", err)
		}
		return w, nil
	}
	text, err := s.Ask("srvr")
	if err != nil {
		return err
	}
	v.about = "ZooKeeper " + textAfter(text, "Zookeeper version: ") + ", one node, forceSync yes"
	e.runs("zk", v)
	return nil
}
