package redisstore

import (
	"context"
	"net"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// topologyFor is the period in which the Sentinels are asked for the primary.
const topologyFor = 5 * time.Second

// follow gives up the client's connections when the Sentinels name another primary.
// go-redis asks a Sentinel for each new connection, and subscribes to their
// announcements; after a missed announcement it would use the old primary as long as its
// connections live. Existing connections are kept otherwise: with distant Sentinels a new
// one takes longer than the time to renew a lease.
func (ls *links) follow(at Server) {
	var sentinels []*redis.Client
	for _, addr := range at.Addrs {
		sentinels = append(sentinels, redis.NewClient(at.sentinel(addr, mostDial, mostAnswer)))
	}
	go func() {
		tick := time.NewTicker(topologyFor)
		defer tick.Stop()
		for {
			select {
			case <-ls.over.Done():
				for _, s := range sentinels {
					_ = s.Close()
				}
				return
			case <-tick.C:
			}
			if addr := namedPrimary(ls.over, sentinels, at.Master); addr != "" && !ls.leads(addr) {
				ls.leave()
			}
		}
	}()
}

// sentinel are the options of a client that asks the Sentinel at addr once, on one
// connection.
func (at Server) sentinel(addr string, dial, answer time.Duration) *redis.Options {
	return &redis.Options{
		Addr: addr, Username: at.SentinelUsername, Password: at.SentinelPassword, TLSConfig: at.TLS,
		DialTimeout: dial, DialerRetries: 1, ReadTimeout: answer, MaxRetries: -1, PoolSize: 1,
		ContextTimeoutEnabled: true, Protocol: 2, DisableIdentity: true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
	}
}

// namedPrimary is the address of the primary in the newest configuration of the
// Sentinels. It is "" if none answers, or if they disagree.
func namedPrimary(ctx context.Context, sentinels []*redis.Client, master string) (addr string) {
	all := make([]struct {
		addr  string
		epoch int64
	}, len(sentinels))
	var wg sync.WaitGroup
	for i, s := range sentinels {
		wg.Go(func() {
			said := node{&client{dated: true}, s}.DoAll(ctx, [][]string{
				{"SENTINEL", "GET-MASTER-ADDR-BY-NAME", master}, {"SENTINEL", "MASTER", master}, // a user may be denied the second
			})
			if at := list(said[0].Value); len(at) == 2 {
				all[i].addr = net.JoinHostPort(text(at[0]), text(at[1]))
				all[i].epoch = number(fields(said[1].Value)["config-epoch"])
			}
		})
	}
	wg.Wait()
	newest := int64(-1)
	for _, one := range all {
		switch {
		case one.addr == "":
		case one.epoch > newest:
			newest, addr = one.epoch, one.addr
		case one.epoch == newest && one.addr != addr:
			addr = ""
		}
	}
	return addr
}

// leads reports whether the connections lead to addr.
func (ls *links) leads(addr string) bool {
	to := ls.peer(addr)
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for l := range ls.open {
		if l.peer == to && l.era == to.era.Load() {
			return true
		}
	}
	return false
}
