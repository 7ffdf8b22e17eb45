package deploy

import (
	"bytes"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// zkRoot is the parent of all nodes of ZooKeeper's clients.
const zkRoot = "/verify"

// sessionTTLs is the session time-out of ZooKeeper's clients in longest TTLs: a TTL is at most half
// of it.
const sessionTTLs = 2

func (b *builder) zookeeper() {
	var between [3][3][]*faultproxy.Proxy // from, to: for elections, and for followers
	var votes [3]string                   // where each listens for elections
	e := testserver.ZooKeeperEnsemble(b.Site, func(from, to int, addr string) string {
		p := faultproxy.New(b.Site, addr)
		if len(between[from][to]) == 0 {
			votes[to] = addr
			if back := between[to][from]; len(back) > 0 {
				introduce(p, votes[from], back[0].Addr)
				introduce(back[0], votes[to], p.Addr)
			}
		}
		between[from][to] = append(between[from][to], p)
		return p.Addr
	}, "tickTime=500", fmt.Sprintf("maxSessionTimeout=%d", (sessionTTLs*b.Options.TTL).Milliseconds()))
	b.Isolate = func(server int, on bool) error {
		var errs []error
		for from, row := range between {
			for to, proxies := range row {
				if from != server && to != server {
					continue
				}
				for _, p := range proxies {
					if !on {
						errs = append(errs, b.Try(p.Heal))
						continue
					}
					p.Swallow(faultproxy.ToServer)
					p.Swallow(faultproxy.ToClient)
				}
			}
		}
		return errors.Join(errs...)
	}
	b.Settled = func() error {
		for _, n := range e.Nodes {
			if _, err := n.Mode(); err != nil {
				return err
			}
		}
		return nil
	}
	var servers []process
	for _, n := range e.Nodes {
		servers = append(servers, n)
	}
	b.serve(servers, e.Addrs(), func(a []string) string {
		return fmt.Sprintf("zk://%s%s?session=%v", strings.Join(a, ","), zkRoot, sessionTTLs*b.Options.TTL)
	})
	b.Quorum = true
	b.Leader = func() (int, error) {
		for i, n := range e.Nodes {
			if mode, err := n.Mode(); err == nil && mode == "leader" {
				return i, nil
			}
		}
		return 0, errors.New("no ZooKeeper leads")
	}
	b.Keys = func() (int, error) {
		leader, err := b.Leader()
		if err != nil {
			return 0, err
		}
		text, err := e.Nodes[leader].Ask("srvr")
		if err != nil {
			return 0, err
		}
		for l := range strings.Lines(text) {
			if n, ok := strings.CutPrefix(l, "Node count: "); ok {
				return strconv.Atoi(strings.TrimSpace(n))
			}
		}
		return 0, errors.New("ZooKeeper does not say how many nodes it has")
	}
	b.Held = func() (all []string, err error) {
		leader, err := b.Leader() // the leader has all updates
		if err != nil {
			return nil, err
		}
		err = zkAdmin(e.Addrs()[leader:leader+1], func(c *zk.Conn) error {
			locks, _, err := c.Children(zkRoot)
			for _, lock := range locks {
				names, _, err := c.Children(zkRoot + "/" + lock)
				if err != nil && !errors.Is(err, zk.ErrNoNode) {
					return err
				}
				for _, name := range names {
					all = append(all, lock+"/"+name)
				}
			}
			if errors.Is(err, zk.ErrNoNode) { // no lock was ever acquired
				return nil
			}
			return err
		})
		return all, err
	}
	b.Wipe = func(bool) error {
		return zkAdmin(e.Addrs(), func(c *zk.Conn) error {
			children, _, err := c.Children(zkRoot)
			for _, name := range children {
				err = errors.Join(err, zkDelete(c, zkRoot+"/"+name))
			}
			return err
		})
	}
	b.clocks()
	b.disks()
	b.stalls()
	b.snapshots()
}

// introduce makes a server that connects through p announce another address for itself: the other
// server hangs up, and connects to that address.
func introduce(p *faultproxy.Proxy, addr, elsewhere string) {
	text := func(s string) []byte {
		return append(binary.BigEndian.AppendUint32(nil, uint32(len(s))), s...)
	}
	p.Rewrite(faultproxy.ToServer, func(data []byte) []byte {
		return bytes.Replace(data, text(addr), text(elsewhere), 1)
	})
}

// zkAdmin calls do with a connection of its own.
func zkAdmin(addrs []string, do func(*zk.Conn) error) error {
	c, events, err := zk.Connect(addrs, 10*time.Second, zk.WithLogger(quiet{}))
	if err != nil {
		return err
	}
	defer c.Close()
	for deadline := time.After(patience); c.State() != zk.StateHasSession; {
		select {
		case <-events:
		case <-deadline:
			return errors.New("no ZooKeeper answers")
		}
	}
	return do(c)
}

// zkDelete deletes a node and everything below it, while other clients create and delete nodes.
func zkDelete(c *zk.Conn, path string) error {
	for {
		children, _, err := c.Children(path)
		for _, name := range children {
			if err == nil {
				err = zkDelete(c, path+"/"+name)
			}
		}
		if err == nil {
			err = c.Delete(path, -1)
		}
		switch {
		case errors.Is(err, zk.ErrNoNode):
			return nil
		case !errors.Is(err, zk.ErrNotEmpty):
			return err
		}
	}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

func (b *builder) etcd() { b.etcds([]*testserver.EtcdServer{testserver.Etcd(b.Site)}) }

func (b *builder) etcd3() {
	between := map[string]*faultproxy.Proxy{}
	members := testserver.EtcdThreeBehind(b.Site, func(addr string) string {
		between[addr] = faultproxy.New(b.Site, addr)
		return between[addr].Addr
	}).Members
	b.etcds(members)
	b.Isolate = func(server int, on bool) error {
		var from []byte // sent by members when they connect to each other
		if on {
			id, err := members[server].MemberID(members[server])
			if err != nil {
				return err
			}
			from = fmt.Appendf(nil, "X-Server-From: %x\r\n", id)
		}
		var errs []error
		for i, m := range members {
			p := between[m.PeerAddr]
			switch {
			case !on:
				errs = append(errs, b.Try(p.Heal))
			case i == server:
				p.Swallow(faultproxy.ToServer)
				p.Swallow(faultproxy.ToClient)
			default:
				p.SwallowOf(func(first []byte) bool { return bytes.Contains(first, from) })
			}
		}
		return errors.Join(errs...)
	}
	b.Reshape = func(server int) (back func() error, err error) {
		gone, stays := members[server], members[(server+1)%3]
		// The members refuse for some seconds after they were disconnected from each other.
		return func() error { return await(func() error { return stays.Admit(gone) }) },
			await(func() error { return stays.Expel(gone) })
	}
	b.Quorum = true
	b.Leader = func() (int, error) {
		for i, m := range members {
			status, err := m.Do("/v3/maintenance/status", nil)
			if err != nil {
				continue // the member is down
			}
			header, _ := status["header"].(map[string]any)
			if id, _ := status["leader"].(string); id != "" && id == header["member_id"] {
				return i, nil
			}
		}
		return 0, errors.New("no etcd leads")
	}
}

func (b *builder) etcds(members []*testserver.EtcdServer) {
	b.Settled = func() error {
		for _, m := range members { // a read that needs a majority
			if _, err := m.Do("/v3/kv/range", map[string]any{"key": "AA=="}); err != nil {
				return err
			}
		}
		return nil
	}
	var servers []process
	var addrs []string
	for _, m := range members {
		servers, addrs = append(servers, m), append(addrs, m.Addr)
	}
	b.serve(servers, addrs, func(a []string) string { return "etcd://" + strings.Join(a, ",") })
	// do asks the first member that answers.
	do := func(path string, request map[string]any) (answer map[string]any, err error) {
		for _, m := range members {
			if answer, err = m.Do(path, request); err == nil {
				return answer, nil
			}
		}
		return nil, err
	}
	all := func() map[string]any { // from the first possible key to the last
		zero := base64.StdEncoding.EncodeToString([]byte{0})
		return map[string]any{"key": zero, "range_end": zero}
	}
	b.Keys = func() (int, error) {
		request := all()
		request["count_only"] = true
		answer, err := do("/v3/kv/range", request)
		if err != nil {
			return 0, err
		}
		n, _ := answer["count"].(string)
		if n == "" { // etcd's way to write 0
			return 0, nil
		}
		return strconv.Atoi(n)
	}
	b.Held = func() (keys []string, err error) {
		request := all()
		request["keys_only"] = true
		answer, err := do("/v3/kv/range", request)
		pairs, _ := answer["kvs"].([]any) // missing if there are no keys
		for _, p := range pairs {
			pair, _ := p.(map[string]any)
			name, _ := pair["key"].(string)
			key, err := base64.StdEncoding.DecodeString(name)
			if err != nil {
				return nil, err
			}
			if !bytes.ContainsRune(key, '\t') { // keys of limits have a tab
				keys = append(keys, string(key))
			}
		}
		return keys, err
	}
	b.Wipe = func(bool) error {
		_, err := do("/v3/kv/deleterange", all())
		return err
	}
	// A watch ends when its revision is compacted.
	b.Deafen = func() error {
		answer, err := do("/v3/kv/range", map[string]any{"key": "AA=="})
		if err != nil {
			return err
		}
		header, _ := answer["header"].(map[string]any)
		_, err = do("/v3/kv/compaction", map[string]any{"revision": header["revision"]})
		if err != nil && strings.Contains(err.Error(), "compacted") {
			return nil // no revision is newer
		}
		return err
	}
	b.disks()
	b.stalls()
	b.snapshots()
}
