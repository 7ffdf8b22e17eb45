package redisstore

import (
	"context"
	"errors"
	"maps"
	"net"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

func TestPromotable(t *testing.T) {
	t.Parallel()
	replica := func(port, flags string) map[string]string {
		return map[string]string{"ip": "h", "port": port, "flags": flags, "slave-priority": "100"}
	}
	says := func(id string, others []map[string]string, replicas ...map[string]string) sentinelSays {
		return sentinelSays{id, map[string]string{"runid": "primary", "config-epoch": "7", "num-other-sentinels": "2"}, replicas, others}
	}
	sentinel := func(id, flags string) map[string]string { return map[string]string{"runid": id, "flags": flags} }
	others := func(of ...string) (all []map[string]string) {
		for _, id := range of {
			all = append(all, sentinel(id, "sentinel"))
		}
		return all
	}
	up, down := replica("1", "slave"), replica("1", "s_down,slave")
	never, silent := replica("1", "slave"), replica("1", "slave")
	never["slave-priority"], silent["last-ok-ping-reply"] = "0", "5001"
	lost := replica("1", "slave,disconnected")
	older := says("c", others("a", "b"), replica("1", "slave"), replica("9", "slave"))
	older.primary = map[string]string{"runid": "before", "config-epoch": "6", "num-other-sentinels": "2"}
	dead := append(others("b"), sentinel("c", "s_down,sentinel"))
	for name, c := range map[string]struct {
		said []sentinelSays
		want map[string]bool
	}{
		"all up":                    {[]sentinelSays{says("a", others("b", "c"), up), says("b", others("a", "c"), up), says("c", others("a", "b"), up)}, map[string]bool{"h:1": true}},
		"down for all":              {[]sentinelSays{says("a", others("b", "c"), down), says("b", others("a", "c"), down), says("c", others("a", "b"), down)}, map[string]bool{"h:1": false}},
		"up for one, that may lead": {[]sentinelSays{says("a", others("b", "c"), down), says("b", others("a", "c"), down), says("c", others("a", "b"), up)}, map[string]bool{"h:1": true}},
		"one does not answer":       {[]sentinelSays{says("a", others("b", "c"), down), says("b", others("a", "c"), down)}, map[string]bool{"h:1": true}},
		"one is dead":               {[]sentinelSays{says("a", dead, down), says("b", append(others("a"), dead[1]), down)}, map[string]bool{"h:1": false}},
		"a minority":                {[]sentinelSays{says("a", []map[string]string{sentinel("b", "s_down"), sentinel("c", "s_down")}, down)}, map[string]bool{"h:1": true}},
		"one address twice":         {[]sentinelSays{says("a", dead, down), says("a", dead, down)}, map[string]bool{"h:1": true}},
		"never to be promoted":      {[]sentinelSays{says("a", dead, never), says("b", append(others("a"), dead[1]), never)}, nil},
		"silent for long":           {[]sentinelSays{says("a", dead, silent), says("b", append(others("a"), dead[1]), silent)}, nil},
		"not connected":             {[]sentinelSays{says("a", dead, lost), says("b", append(others("a"), dead[1]), lost)}, nil},
		"not connected to one":      {[]sentinelSays{says("a", dead, lost), says("b", append(others("a"), dead[1]), down)}, nil},
		"known to one only":         {[]sentinelSays{says("a", others("b", "c"), up), says("b", others("a", "c"), up, replica("2", "slave")), says("c", others("a", "b"), up)}, map[string]bool{"h:1": true, "h:2": true}},
		"an old configuration":      {[]sentinelSays{older, says("a", others("b", "c"), up), says("b", others("a", "c"), up)}, map[string]bool{"h:1": true}},
	} {
		v, ok := promotable(c.said)
		if !ok || v.server != "primary" || !maps.Equal(v.replicas, c.want) {
			t.Errorf("%s: %v %q %v, want %v", name, ok, v.server, v.replicas, c.want)
		}
	}
	if _, ok := promotable(nil); ok {
		t.Error("no Sentinel answered: a view")
	}
}

func TestReplicasOfClusterNode(t *testing.T) {
	t.Parallel()
	const nodes = `a 127.0.0.1:1@11,host myself,master - 0 0 1 connected 0-100
b 127.0.0.1:2@12 slave a 0 0 1 connected
c 127.0.0.1:3@13 slave,fail a 0 0 1 connected
d 127.0.0.1:4@14 slave,fail? a 0 0 1 disconnected
e 127.0.0.1:5@15 slave,nofailover a 0 0 1 connected
f 127.0.0.1:6@16 master - 0 0 2 connected 101-200
g 127.0.0.1:7@17 slave f 0 0 2 connected
h ::1:8@18,host slave a 0 0 1 connected
i 127.0.0.1:9@19 master,fail - 0 0 1 connected
j 127.0.0.1:10@20 slave i 0 0 1 connected
k 127.0.0.1:11@21 master - 0 0 1 connected
`
	want := map[string]bool{"127.0.0.1:2": true, "127.0.0.1:3": false, "127.0.0.1:4": true, "[::1]:8": true, "127.0.0.1:10": true}
	if got, primary := replicasOf(nodes, nil); !primary || !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	want["127.0.0.1:9"], want["127.0.0.1:11"] = false, true
	if got, _ := replicasOf(nodes, []string{"127.0.0.1:9", "127.0.0.1:11", "127.0.0.1:1"}); !maps.Equal(got, want) {
		t.Errorf("of a new primary: %v, want %v", got, want)
	}
	if _, primary := replicasOf(strings.Replace(nodes, "myself,master -", "myself,slave f", 1), nil); primary {
		t.Error("a replica is taken for a primary")
	}
}

// A new primary has those of its shard for a while, and then those that it knows.
func TestShardOfANewPrimary(t *testing.T) {
	t.Parallel()
	now := time.Now()
	before := map[string]view{
		"p:1": {since: now.Add(-time.Hour), replicas: map[string]bool{"r:1": true, "r:2": true}},
		"q:1": {since: now.Add(-time.Hour), replicas: map[string]bool{"s:1": true}},
	}
	since, shard := shardOf("r:1", before, now)
	slices.Sort(shard)
	if !since.Equal(now) || !slices.Equal(shard, []string{"p:1", "r:1", "r:2"}) {
		t.Errorf("%v, %v", since, shard)
	}
	before["r:1"] = view{since: since, shard: shard}
	if _, again := shardOf("r:1", before, now.Add(youth-1)); !slices.Equal(again, shard) {
		t.Errorf("while it is new: %v", again)
	}
	if since, later := shardOf("r:1", before, now.Add(youth)); !since.Equal(now) || later != nil {
		t.Errorf("later: %v", later)
	}
}

// A replica that is never promoted acknowledges sooner than the one that could be.
func TestReplicasAcknowledgeInAnyOrder(t *testing.T) {
	testserver.NeedRedis(t)
	t.Parallel()
	primary, near, far := testserver.Redis(t), testserver.Redis(t), testserver.Redis(t)
	link := faultproxy.New(t, primary.Addr)
	follow := func(replica *testserver.RedisServer, at string) {
		host, port, _ := net.SplitHostPort(at)
		if _, err := replica.Do("REPLICAOF", host, port); err != nil {
			t.Fatal(err)
		}
	}
	follow(near, primary.Addr)
	follow(far, link.Addr)
	s, err := Open(t.Context(), Server{Addrs: []string{primary.Addr}}, Config{Replicas: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	acquire := func() error {
		r := driver.Request{Claim: claimOf("k", driver.NewID()), TTL: 10 * time.Second}
		_, err := s.Acquire(t.Context(), r)
		return errors.Join(err, s.Release(t.Context(), r.Claim))
	}
	eventually(t, "both in sync", 10*time.Second, func() bool { return acquire() == nil })
	r := &s.replicas
	r.want = AllReplicas // as if a Sentinel had told it
	r.views.Store(&map[string]view{"": {asked: time.Now().Add(time.Hour), replicas: map[string]bool{far.Addr: true}, never: map[string]bool{near.Addr: true}}})
	link.Delay(faultproxy.ToServer, 20*time.Millisecond)
	for range 5 {
		if err := acquire(); err != nil {
			t.Error(err)
		}
	}
}

// What a caller is told when too few replicas have a lock.
func TestReplicasMissing(t *testing.T) {
	t.Parallel()
	say := func(r *replicas, a wire.Acks) string {
		err := r.missing(&a, "k")
		if err == nil {
			return ""
		}
		if e, ok := errors.AsType[*ReplicasError](err); !ok || e.Key != "k" || !errors.Is(err, driver.ErrUnknown) ||
			errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrDenied) {
			t.Errorf("%v: no *ReplicasError that is ErrUnknown, and nothing else", err)
		}
		return err.Error()
	}
	seen := func(age time.Duration, server string, could map[string]bool) *replicas {
		r := &replicas{want: AllReplicas, who: true, kick: make(chan struct{}, 1)}
		r.views.Store(&map[string]view{"": {asked: time.Now().Add(-age), server: server, replicas: could}})
		return r
	}
	at := func(m map[string]int64) wire.Acks { return wire.Acks{Offset: 10, Replicas: m} }
	both, one, late := map[string]int64{"h:1": 10, "h:2": 12}, map[string]int64{"h:1": 10}, map[string]int64{"h:1": 10, "h:2": 9}
	could, down := map[string]bool{"h:1": true, "h:2": true}, map[string]bool{"h:1": true, "h:2": false}
	by := func(flag string) wire.Acks { // by what the primary says in the same call
		a := at(one)
		a.Cluster = "a h:0@1 myself,master - 0 0 1 connected 0-100\nb h:1@2 slave a 0 0 1 connected\nc h:2@3 slave," + flag + " a 0 0 1 connected\n"
		return a
	}
	hangs := seen(0, "", down)
	hangs.down = map[string]acknowledged{"h:2": {9, time.Now().Add(-viewFor)}}
	for name, c := range map[string]struct{ got, want string }{
		"all, both":          {say(seen(0, "", could), at(both)), ""},
		"all, one late":      {say(seen(0, "", could), at(late)), "missing: h:2"},
		"all, one cut off":   {say(seen(0, "", could), at(one)), "missing: h:2"},
		"all, one down":      {say(seen(0, "", down), at(one)), ""},
		"all, one back":      {say(seen(0, "", down), at(late)), "missing: h:2"},
		"all, one hangs":     {say(hangs, at(late)), ""},
		"all, one moves":     {say(hangs, at(map[string]int64{"h:1": 10, "h:2": 8})), "missing: h:2"},
		"all, down for long": {say(seen(viewForDown, "", down), at(one)), "for too long no answer"},
		"all, one new":       {say(seen(0, "", map[string]bool{"h:1": true}), at(late)), "missing: h:2"},
		"all, old view":      {say(seen(viewFor, "", could), at(both)), "for too long no answer"},
		"all, no view":       {say(&replicas{want: AllReplicas, kick: make(chan struct{}, 1)}, at(both)), "for too long no answer"},
		"all, back by now":   {say(seen(0, "", down), by("connected")), "missing: h:2"},
		"all, still down":    {say(seen(0, "", down), by("fail")), ""},
		"all, other primary": {say(seen(0, "another", could), at(both)), "not the primary"},
		"all, no answer":     {say(seen(0, "", could), wire.Acks{Err: context.DeadlineExceeded}), "deadline exceeded"},
		"all, demoted":       {say(seen(0, "", could), wire.Acks{Err: &wire.ServerError{Text: "READONLY the server is a replica by now"}}), "READONLY"},
		"all, denied":        {say(seen(0, "", could), wire.Acks{Err: &wire.ServerError{Text: "NOPERM no permissions to run the 'role' command"}}), "NOPERM"},
		"1":                  {say(&replicas{want: 1}, at(late)), ""},
		"2":                  {say(&replicas{want: 2}, at(late)), "1 replicas have acknowledged it in time, asked for: 2; missing: h:2"},
		"3":                  {say(&replicas{want: 3}, at(both)), "start more replicas"},
		"auto":               {say(&replicas{want: AutoReplicas}, at(late)), ""},
		"auto, all late":     {say(&replicas{want: AutoReplicas}, at(map[string]int64{"h:1": 1})), "missing: h:1"},
		"auto, none":         {say(&replicas{want: AutoReplicas}, at(nil)), ""},
	} {
		if (c.want == "") != (c.got == "") || !strings.Contains(c.got, c.want) {
			t.Errorf("%s: %q, want %q", name, c.got, c.want)
		}
	}
}

// All calls that grant something fail, and have it not counted, while the only replica is
// cut off; and work while it is not.
func TestReplicasAcknowledge(t *testing.T) {
	t.Parallel()
	primary, replica := testserver.Redis(t), testserver.Redis(t)
	link := faultproxy.New(t, primary.Addr)
	host, port, _ := strings.Cut(link.Addr, ":")
	if _, err := replica.Do("REPLICAOF", host, port); err != nil {
		t.Fatal(err)
	}
	s, err := Open(t.Context(), Server{Addrs: []string{primary.Addr}}, Config{Replicas: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	const ttl = time.Second
	request := func(key string, weight int64) driver.Request {
		return driver.Request{Claim: driver.Claim{Key: key, ID: driver.NewID(), Weight: weight, Capacity: driver.Whole}, TTL: ttl}
	}
	eventually(t, "the replica in sync", 10*time.Second, func() bool {
		r := request("first", driver.Whole)
		_, err := s.Acquire(t.Context(), r)
		return errors.Join(err, s.Release(t.Context(), r.Claim)) == nil
	})
	grantOf := func(r driver.Request) driver.Claim {
		t.Helper()
		g, err := s.Acquire(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		r.Claim.Ticket = g.Ticket
		return r.Claim
	}
	kept, moved, read := grantOf(request("kept", driver.Whole)), grantOf(request("moved", driver.Whole)), grantOf(request("read", 1))
	if got := s.Renew(t.Context(), []driver.Claim{kept, moved, read}, 10*ttl); got[0].State != driver.Held || got[1].State != driver.Held || got[2].State != driver.Held {
		t.Fatalf("renewed while the replica is there: %v", got)
	}
	if found := examine(t, s); found["min-replicas-to-write"].What != "" {
		t.Errorf("a lock that waits for replicas: doctor says %v", found["min-replicas-to-write"])
	}
	link.Hold(faultproxy.ToClient)
	lacks := func(what string, err error) {
		t.Helper()
		if e, ok := errors.AsType[*ReplicasError](err); !ok || e.Acknowledged != 0 || len(e.Missing) != 1 {
			t.Errorf("%s without the replica: %v", what, err)
		}
	}
	for key, weight := range map[string]int64{"new": driver.Whole, "new to read": 1} {
		_, err := s.Acquire(t.Context(), request(key, weight))
		lacks("a grant", err)
	}
	_, err = s.AcquireAll(t.Context(), []driver.Request{request("one", driver.Whole), request("two", driver.Whole)})
	lacks("a grant of several", err)
	for _, r := range s.Renew(t.Context(), []driver.Claim{kept, read}, 10*ttl) {
		lacks("a renewal", r.Err)
	}
	_, err = s.Move(t.Context(), moved, driver.NewID(), "", ttl)
	lacks("a move", err)
	_, err = s.Downgrade(t.Context(), kept, ttl)
	lacks("a downgrade", err)
	if g, err := s.Acquire(t.Context(), request("kept", driver.Whole)); !errors.Is(err, driver.ErrHeld) {
		t.Errorf("what is held, without the replica: %v %v", g, err)
	}
	if err := s.Release(t.Context(), read); err != nil {
		t.Errorf("a release needs no replica: %v", err)
	}
	link.Heal()
	grantOf(request("again", driver.Whole))
}

// A user who may not ask about replicas has locks that wait for none, and doctor says so.
func TestAutoReplicasOfAUserWithFewRights(t *testing.T) {
	t.Parallel()
	primary := testserver.Redis(t)
	testserver.RedisReplica(t, primary)
	for _, rights := range []string{"-role", "-wait"} {
		if _, err := primary.Do("ACL", "SETUSER", "few", "on", ">secret", "~*", "&*", "+@all", rights); err != nil {
			t.Fatal(err)
		}
		s, err := Open(t.Context(), Server{Addrs: []string{primary.Addr}, Username: "few", Password: "secret"}, Config{Replicas: AutoReplicas})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		for range 2 {
			r := driver.Request{Claim: claimOf("job", driver.NewID()), TTL: time.Minute}
			if _, err := s.Acquire(t.Context(), r); err != nil {
				t.Fatalf("%s: %v", rights, err)
			}
			if err := s.Release(t.Context(), r.Claim); err != nil {
				t.Errorf("%s: %v", rights, err)
			}
		}
		if f := examine(t, s)["replication"]; f.Severity != driver.Unsafe || !strings.Contains(f.Mend, "+role +wait") {
			t.Errorf("%s: doctor says %+v", rights, f)
		}
	}
}

// With auto the first lock does not wait for a replica where there is none.
func TestAutoReplicasOfAPrimaryWithout(t *testing.T) {
	t.Parallel()
	cluster := testserver.SharedRedisCluster(t)
	for name, at := range map[string]Server{
		"one server": {Addrs: []string{testserver.Redis(t).Addr}},
		"Cluster":    {Addrs: cluster.Addrs(), Cluster: true},
	} {
		s, err := Open(t.Context(), at, Config{Replicas: AutoReplicas, Prefix: strings.ToLower(driver.NewID()) + ":"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { s.Close() })
		known := 0
		s.replicas.connected.Range(func(_, n any) bool {
			known++
			if n != 0 {
				t.Errorf("%s: %v replicas", name, n)
			}
			return true
		})
		if known == 0 {
			t.Errorf("%s: no primary was asked", name)
		}
		if _, err := s.Acquire(t.Context(), driver.Request{Claim: claimOf("job", driver.NewID()), TTL: time.Minute}); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}
