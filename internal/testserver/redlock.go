package testserver

import "net"

// RedisNodes starts n independent Redis servers, which are empty after a Restart. args
// are arguments of redis-server.
func RedisNodes(t TB, n int, args ...string) []*RedisServer {
	t.Helper()
	nodes := make([]*RedisServer, n)
	for i := range nodes {
		nodes[i] = Redis(t, args...)
	}
	return nodes
}

// Addrs returns the addresses at which servers listen.
func Addrs(servers []*RedisServer) []string {
	addrs := make([]string, len(servers))
	for i, s := range servers {
		addrs[i] = s.Addr
	}
	return addrs
}

// RedisReplica starts a replica of a server and returns when it is in sync.
func RedisReplica(t TB, of *RedisServer) *RedisServer {
	t.Helper()
	host, port, _ := net.SplitHostPort(of.Addr) // it is one of ours
	replica := Redis(t, "--replicaof", host+" "+port)
	poll(t, "the replica in sync", func() error {
		return infoSays(replica, "replication", "master_link_status:up")
	})
	return replica
}

var sharedNodes shared[[]*RedisServer]

// SharedRedisNodes returns the five independent servers that the tests of this binary
// share. They touch only their own keys and do not stop them.
func SharedRedisNodes(t TB) []*RedisServer {
	t.Helper()
	return sharedNodes.get(t, func(t TB) []*RedisServer { return RedisNodes(t, 5) })
}
