package redisstore

import (
	"context"
	"maps"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// sentinels asks all Sentinels of a primary which replicas could be promoted.
type sentinels struct {
	at Server

	clients map[string]*redis.Client // by address
}

func newSentinels(at Server) *sentinels {
	return &sentinels{at: at, clients: map[string]*redis.Client{}}
}

// sentinelSays are the answers of one Sentinel.
type sentinelSays struct {
	id       string
	primary  map[string]string
	replicas []map[string]string
	others   []map[string]string // the other Sentinels
}

// look asks the Sentinels that Open was given, and those that they know.
func (s *sentinels) look(ctx context.Context, views map[string]view) {
	if views == nil {
		for _, c := range s.clients {
			_ = c.Close()
		}
		return
	}
	asked := time.Now()
	for _, addr := range s.at.Addrs {
		s.client(addr)
	}
	var mu sync.Mutex
	var said []sentinelSays
	var wg sync.WaitGroup
	for _, c := range s.clients {
		wg.Go(func() {
			if one, ok := s.ask(ctx, c); ok {
				mu.Lock()
				defer mu.Unlock()
				said = append(said, one)
			}
		})
	}
	wg.Wait()
	s.keep(said)
	if v, ok := promotable(said); ok {
		v.asked = asked
		views[""] = v
	}
}

// keep makes clients for the Sentinels that were named, and closes those of Sentinels no
// longer named.
func (s *sentinels) keep(said []sentinelSays) {
	if len(said) == 0 {
		return
	}
	known := slices.Clone(s.at.Addrs)
	for _, one := range said {
		for _, other := range one.others {
			known = append(known, address(other))
			s.client(address(other))
		}
	}
	for addr, c := range s.clients {
		if !slices.Contains(known, addr) {
			_ = c.Close()
			delete(s.clients, addr)
		}
	}
}

// client makes a client for the Sentinel at addr.
func (s *sentinels) client(addr string) {
	if s.clients[addr] == nil {
		s.clients[addr] = redis.NewClient(s.at.sentinel(addr, lookPatience, lookPatience))
	}
}

func (s *sentinels) ask(ctx context.Context, c *redis.Client) (said sentinelSays, ok bool) {
	answers := node{&client{dated: true}, c}.DoAll(ctx, [][]string{
		{"SENTINEL", "MYID"}, {"SENTINEL", "MASTER", s.at.Master}, {"SENTINEL", "REPLICAS", s.at.Master}, {"SENTINEL", "SENTINELS", s.at.Master},
	})
	for _, a := range answers {
		if a.Err != nil {
			return said, false
		}
	}
	said.id, said.primary = text(answers[0].Value), fields(answers[1].Value)
	for _, r := range list(answers[2].Value) {
		said.replicas = append(said.replicas, fields(r))
	}
	for _, o := range list(answers[3].Value) {
		said.others = append(said.others, fields(o))
	}
	return said, said.id != ""
}

// promotable judges the answers of Sentinels. The primary is that of the newest
// configuration. A Sentinel that leads a failover chooses the replica by its own
// knowledge. So a replica could be promoted unless every Sentinel that may lead says that
// it could not. A Sentinel may lead unless a majority of the others call it down. A
// Sentinel without an answer counts for nothing: an isolated primary, with a minority of
// the Sentinels beside it, needs the acknowledgements of all the replicas that it had.
//
// The view omits a replica to which a Sentinel has only lost its connection, or which it
// has just heard of: such a replica may soon be fit, so it counts if the primary sees it.
func promotable(said []sentinelSays) (v view, ok bool) {
	if len(said) == 0 {
		return v, false
	}
	slices.SortFunc(said, func(a, b sentinelSays) int {
		return int(number(b.primary["config-epoch"]) - number(a.primary["config-epoch"]))
	})
	answered, sentinels := map[string]bool{}, 1
	for _, s := range said {
		answered[s.id] = true
		sentinels = max(sentinels, int(number(s.primary["num-other-sentinels"]))+1)
	}
	leaders := 2*len(answered) > sentinels
	for _, s := range said {
		for _, o := range s.others {
			if !answered[o["runid"]] && !flagged(o, "s_down") {
				leaders = false
			}
		}
	}
	v = view{server: said[0].primary["runid"], replicas: map[string]bool{}, never: map[string]bool{}}
	for _, s := range said {
		if s.primary["config-epoch"] != said[0].primary["config-epoch"] {
			continue
		}
		for _, r := range s.replicas {
			v.replicas[address(r)] = false
		}
	}
	soon, ever := map[string]bool{}, map[string]bool{}
	for _, s := range said {
		for _, r := range s.replicas {
			if could, known := v.replicas[address(r)]; known {
				v.replicas[address(r)] = could || !leaders || !unfit(r)
				soon[address(r)] = soon[address(r)] || !down(r)
				ever[address(r)] = ever[address(r)] || r["slave-priority"] != "0"
			}
		}
	}
	maps.DeleteFunc(v.replicas, func(addr string, could bool) bool {
		if v.never[addr] = !ever[addr] && leaders; v.never[addr] {
			return true
		}
		return !could && soon[addr]
	})
	return v, true
}

// unfit reports whether the Sentinel with this answer would not promote the replica now.
// These are Sentinel's own rules, except the one about the age of the replica's data,
// which may change within a second.
func unfit(replica map[string]string) bool {
	return down(replica) || flagged(replica, "disconnected") || number(replica["last-ok-ping-reply"]) > lastPing.Milliseconds()
}

// down reports whether the Sentinel would not promote it in the next second either.
func down(replica map[string]string) bool {
	return flagged(replica, "s_down") || flagged(replica, "o_down")
}

// lastPing is the greatest age of the last answer of a replica that Sentinel promotes:
// five periods of its PING.
const lastPing = 5 * time.Second

func flagged(instance map[string]string, flag string) bool {
	return slices.Contains(strings.Split(instance["flags"], ","), flag)
}

func address(instance map[string]string) string {
	return net.JoinHostPort(instance["ip"], instance["port"])
}
