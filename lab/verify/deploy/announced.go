package deploy

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// Sentinel and the nodes of a cluster tell their clients the addresses of servers: the proxies
// replace those by addresses of proxies.

// told is an address in an answer of Redis: as a text, or as an IP and a port that is text or
// number, or among the fields of a node. All ports of the servers have five digits.
var told = regexp.MustCompile(`(127\.0\.0\.1(?::| |\r\n:|\r\n\$5\r\n)|port\r\n(?::|\$5\r\n))(\d{5})`)

// translate makes each client's proxies replace the servers' addresses by those of that client's
// proxies. known are the addresses that servers tell, in the order of the servers.
func (b *builder) translate(known []string) {
	for client := range b.Options.Clients {
		ports := make(map[string]string)
		proxies := b.Proxies(client)
		for i, addr := range known {
			ports[port(addr)] = port(proxies[i].Addr)
		}
		for _, p := range proxies {
			p.Rewrite(faultproxy.ToClient, func(data []byte) []byte {
				if !bytes.Contains(data, []byte("127.0.0.1")) && !bytes.Contains(data, []byte("port\r\n")) {
					return data
				}
				return told.ReplaceAllFunc(data, func(match []byte) []byte {
					before, digits := match[:len(match)-5], match[len(match)-5:]
					if to, ok := ports[string(digits)]; ok {
						return append(slices.Clone(before), to...)
					}
					return match
				})
			})
		}
	}
}

func port(addr string) string {
	_, p, _ := net.SplitHostPort(addr) // it is an address of a started server
	return p
}

// member is a server that needs an action after a restart.
type member struct {
	*testserver.RedisServer
	site   *testserver.Site
	rejoin func() error
}

func (m *member) Restart() {
	m.RedisServer.Restart()
	if err := await(m.rejoin); err != nil {
		m.site.Fatalf("%v", err)
	}
}

func (b *builder) sentinel() {
	b.Site.Clocks = b.Options.Clocks
	// The servers' messages to each other go through proxies, too: one in front of each server
	// with data.
	between := map[string]*faultproxy.Proxy{}
	set := testserver.RedisSentinelBehind(b.Site, func(addr string) string {
		between[addr] = faultproxy.New(b.Site, addr)
		return between[addr].Addr
	})
	nodes := []*testserver.RedisServer{set.Primary, set.Replica}
	var servers []process
	var known []string
	for _, n := range nodes {
		servers = append(servers, &member{n, b.Site, func() error { return set.Rejoin(n) }})
		known = append(known, between[n.Addr].Addr)
	}
	b.serve(append(servers, set.Sentinel), []string{nodes[0].Addr, nodes[1].Addr, set.Sentinel.Addr}, func(a []string) string {
		return "redis+sentinel://" + a[2] + "/" + set.Name
	})
	b.translate(append(known, set.Sentinel.Addr))
	primary := func() *testserver.RedisServer {
		if at, err := set.PrimaryAddr(); err == nil && at == known[1] {
			return nodes[1]
		}
		return nodes[0]
	}
	b.redisAdmin(func() []*testserver.RedisServer { return []*testserver.RedisServer{primary()} })
	b.Leader = func() (int, error) {
		at, err := set.PrimaryAddr()
		if err != nil {
			return 0, err
		}
		leader := slices.Index(known, at)
		if leader < 0 {
			return 0, fmt.Errorf("the Sentinel names an unknown primary %s", at)
		}
		// Sentinel names the leader a moment before it leads.
		if role, err := info(nodes[leader], "replication", "role"); err == nil && role != "master" {
			return 0, fmt.Errorf("server %d is no primary yet", leader)
		}
		return leader, nil
	}
	b.Elect = func(on bool) error {
		after := "600000"
		if on {
			after = "500"
		}
		_, err := set.Sentinel.Do("SENTINEL", "SET", set.Name, "down-after-milliseconds", after)
		return err
	}
	b.Isolate = func(server int, on bool) error {
		if server >= len(nodes) {
			return errors.New("a Sentinel is not isolated here")
		}
		p := between[nodes[server].Addr]
		if !on {
			return b.Try(p.Heal)
		}
		p.Swallow(faultproxy.ToServer)
		p.Swallow(faultproxy.ToClient)
		return nil
	}
	b.Settled = func() error {
		_, err := set.Settled()
		return err
	}
	b.clocks()
}

// cluster has primaries without replicas, because Sentinel tests failovers.
func (b *builder) cluster() {
	b.Site.Clocks = b.Options.Clocks
	c := testserver.RedisCluster(b.Site)
	var servers []process
	for _, n := range c.Nodes {
		servers = append(servers, n)
	}
	b.serve(servers, c.Addrs(), func(a []string) string { return "redis+cluster://" + strings.Join(a, ",") })
	b.translate(c.Addrs())
	b.redisAdmin(func() []*testserver.RedisServer { return c.Nodes[:] })
	b.Settled = func() error {
		for _, n := range c.Nodes {
			text, err := n.Do("CLUSTER", "INFO")
			if err != nil {
				return err
			}
			for _, want := range []string{"cluster_state:ok", "cluster_slots_ok:16384"} {
				if !strings.Contains(text, want) {
					return errors.New("the cluster is not yet " + want)
				}
			}
		}
		return nil
	}
	b.Reshape = func(server int) (back func() error, err error) {
		from, to, other := c.Nodes[server], c.Nodes[(server+1)%3], c.Nodes[(server+2)%3]
		slots, err := slotsInUse(from)
		if err != nil {
			return nil, err
		}
		return func() error { return moveSlots(slots, to, from, other) }, moveSlots(slots, from, to, other)
	}
	b.clocks()
}

// slotsInUse are the slots of a server's keys.
func slotsInUse(n *testserver.RedisServer) (slots []int, err error) {
	all, err := n.Do("KEYS", "*")
	if err != nil || all == "" {
		return nil, err
	}
	for _, k := range strings.Split(all, "\n") {
		answer, err := n.Do("CLUSTER", "KEYSLOT", k)
		if err != nil {
			return nil, err
		}
		slot, err := strconv.Atoi(answer)
		if err != nil {
			return nil, err
		}
		slots = append(slots, slot)
	}
	slices.Sort(slots)
	return slices.Compact(slots), nil
}

// moveSlots moves slots with their keys, like redis-cli. Clients continue to work meanwhile.
func moveSlots(slots []int, from, to, other *testserver.RedisServer) error {
	source, err1 := from.Do("CLUSTER", "MYID")
	target, err2 := to.Do("CLUSTER", "MYID")
	if err := errors.Join(err1, err2); err != nil {
		return err
	}
	host, at, _ := net.SplitHostPort(to.Addr) // it is an address of a started server
	move := func(slot string) error {
		if _, err := to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", source); err != nil {
			return err
		}
		if _, err := from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", target); err != nil {
			return err
		}
		for {
			keys, err := from.Do("CLUSTER", "GETKEYSINSLOT", slot, "100")
			if err != nil {
				return err
			}
			if keys == "" {
				break
			}
			args := append([]string{"MIGRATE", host, at, "", "0", "5000", "KEYS"}, strings.Split(keys, "\n")...)
			if _, err := from.Do(args...); err != nil {
				return err
			}
		}
		var errs []error
		for _, n := range []*testserver.RedisServer{to, from, other} {
			_, err := n.Do("CLUSTER", "SETSLOT", slot, "NODE", target)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	}
	for _, s := range slots {
		if err := move(strconv.Itoa(s)); err != nil {
			return fmt.Errorf("move slot %d: %w", s, err)
		}
	}
	return nil
}
