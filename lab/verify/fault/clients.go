package fault

import (
	"cmp"
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
)

// clientFaults break clients, and their connections to the servers.
var clientFaults = []Fault{
	{
		ID: "f01", Name: "contention", Does: "nothing breaks, all want the same",
		Needs: func(*Scene) string { return "" },
		Run: func(ctx context.Context, s *Scene) error {
			pause(ctx, s.TTL)
			return nil
		},
	},
	{
		ID: "f02", Name: "kill", Does: "a process that holds locks is killed, and started again",
		Needs: others, Always: true,
		Run: func(ctx context.Context, s *Scene) error {
			n, c := s.holder(ctx)
			defer s.breaks("client %d is killed", n)()
			if err := c.Signal(syscall.SIGKILL); err != nil {
				return err
			}
			pause(ctx, s.upTo(s.TTL*3/2))
			return c.Revive()
		},
	},
	{
		ID: "f03", Name: "short-stop", Does: "a holder's process stops for a third of the TTL",
		Needs: anybody,
		Run:   func(ctx context.Context, s *Scene) error { return s.stop(ctx, s.TTL/3) },
	},
	{
		ID: "f04", Name: "long-stop", Does: "a holder's process stops for twice the TTL, and goes on",
		Needs: anybody,
		Run:   func(ctx context.Context, s *Scene) error { return s.stop(ctx, s.TTL*2+s.upTo(s.TTL/2)) },
	},
	{
		ID: "f05", Name: "stop-in-section", Does: "a holder stops after it has found its lease valid and before it writes, for twice the TTL",
		Needs: anybody,
		Run:   stopInSection,
	},
	{
		ID: "f06", Name: "black-hole", Does: "what a holder and the servers send each other is lost, for twice the TTL",
		Needs: wires,
		Run: func(ctx context.Context, s *Scene) error {
			n, _ := s.holder(ctx)
			defer s.breaks("client %d sends into the void", n)()
			defer s.heal(n)
			for _, p := range s.Proxies(n) {
				silence(p)
			}
			defer s.silent(n)()
			pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
			return nil
		},
	},
	{
		ID: "f07", Name: "reply-cut", Does: "answers are lost after the request has taken effect, and the connection with them",
		Needs: wires,
		Run:   cutReplies,
	},
	{
		ID: "f08", Name: "reset-flap", Does: "all connections are reset, five times a second",
		Needs: wires,
		Run: func(ctx context.Context, s *Scene) error {
			defer s.breaks("all connections are reset, again and again")()
			s.onAllWires(ctx, 2*s.TTL, 200*time.Millisecond, (*faultproxy.Proxy).Cut)
			return nil
		},
	},
	{
		ID: "f09", Name: "latency", Does: "every round trip takes 50 to 350 ms, now this and now that, and messages come in pieces",
		Needs: wires,
		Run: func(ctx context.Context, s *Scene) error {
			defer s.breaks("the wires are slow")()
			for n := range s.Clients {
				defer s.heal(n)
			}
			s.onAllWires(ctx, 3*s.TTL, 0, func(p *faultproxy.Proxy) {
				p.Delay(faultproxy.ToServer, 25*time.Millisecond+s.upTo(150*time.Millisecond))
				p.Delay(faultproxy.ToClient, 25*time.Millisecond+s.upTo(150*time.Millisecond))
				p.Slice(faultproxy.ToServer, 1+s.Rand.IntN(200))
				p.Slice(faultproxy.ToClient, 1+s.Rand.IntN(200))
			})
			return nil
		},
	},
	{
		ID: "f26", Name: "half-open", Does: "the connections of a holder fall silent for ever, and new ones work, as when a NAT forgets",
		Needs: wires, TTL: patientTTL,
		Run: func(ctx context.Context, s *Scene) error {
			n, _ := s.holder(ctx)
			defer s.breaks("the connections of client %d fall silent", n)()
			defer s.heal(n)
			for _, p := range s.Proxies(n) {
				p.HalfOpen()
			}
			pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
			return nil
		},
	},
	{
		ID: "f27", Name: "far", Does: "half of the clients are 300, 600 and then 1000 ms away from the servers, each way",
		Needs: func(s *Scene) string { return cmp.Or(others(s), wires(s)) }, TTL: farTTL, Owed: true, RoundTrip: 2 * time.Second,
		Run: far,
	},
	{
		ID: "f28", Name: "slow-server", Does: "the servers take 0.4 s for each request, of all clients at once",
		Needs: wires, TTL: patientTTL, Owed: true, RoundTrip: 400 * time.Millisecond,
		Run: func(ctx context.Context, s *Scene) error {
			defer s.breaks("the servers are slow")()
			for n := range s.Clients {
				defer s.heal(n)
				for _, p := range s.Proxies(n) {
					p.Delay(faultproxy.ToClient, 400*time.Millisecond)
				}
			}
			pause(ctx, 2*s.TTL)
			return nil
		},
	},
	{
		ID: "f22", Name: "storm", Does: "some hundred connections are opened that say nothing, and all connections are reset",
		Needs: wires,
		Run:   storm,
	},
	{
		ID: "f24", Name: "suspend", Does: "a holder's machine sleeps: its process stops, and its clock jumps by twice the TTL",
		Needs: func(s *Scene) string {
			if !s.Library {
				return "clients whose clock can be made to jump: those that use the library"
			}
			return anybody(s)
		},
		Run: func(ctx context.Context, s *Scene) error {
			n, c := s.holder(ctx)
			defer s.breaks("client %d sleeps", n)()
			err := c.Suspend(2 * s.TTL)
			return errors.Join(err, frozen(ctx, c, s.TTL/2+s.upTo(s.TTL), func() func() { return s.silent(n) }))
		},
	},
}

// patientTTL is the TTL for faults that a lease survives if the client detects in time that it gets
// no answer: after two seconds, plus one for a new connection.
const patientTTL = 6 * time.Second

// farTTL is the TTL for clients whose round trips take two seconds. Some stores renew a lease in
// several round trips.
const farTTL = 10 * time.Second

func far(ctx context.Context, s *Scene) error {
	all := s.Rand.Perm(len(s.Clients))
	away := all[:(len(all)+1)/2]
	for _, d := range []time.Duration{300, 600, 1000} {
		d *= time.Millisecond
		heals := s.breaks("clients %v are %v away", away, d)
		for _, n := range away {
			for _, p := range s.Proxies(n) {
				p.Delay(faultproxy.ToServer, d)
				p.Delay(faultproxy.ToClient, d)
			}
		}
		pause(ctx, s.TTL)
		for _, n := range away {
			s.heal(n)
		}
		heals()
	}
	return nil
}

func anybody(s *Scene) string {
	if len(s.Clients) == 0 {
		return "client processes"
	}
	return ""
}

func others(s *Scene) string {
	if len(s.Clients) < 2 {
		return "several client processes"
	}
	return ""
}

func wires(s *Scene) string {
	for n := range s.Clients {
		if s.Proxies == nil || len(s.Proxies(n)) == 0 {
			return "connections that go through a proxy"
		}
	}
	return anybody(s)
}

// holder draws one of the clients that hold a lock. If none does for a while, it draws any client.
// Faults that run together draw different clients.
func (s *Scene) holder(ctx context.Context) (int, Client) {
	order := s.Rand.Perm(len(s.Clients))
	order = slices.DeleteFunc(order, func(n int) bool { return s.parts > 0 && n%s.parts != s.part })
	for end := time.Now().Add(2 * s.TTL); ; pause(ctx, 5*time.Millisecond) {
		for _, n := range order {
			if s.Clients[n].Holds() {
				return n, s.Clients[n]
			}
		}
		if time.Now().After(end) || ctx.Err() != nil {
			return order[0], s.Clients[order[0]]
		}
	}
}

// onAllWires calls do for every proxy of every client, repeatedly for d, at intervals of 100 ms plus
// up to more.
func (s *Scene) onAllWires(ctx context.Context, d, more time.Duration, do func(*faultproxy.Proxy)) {
	for end := time.Now().Add(d); time.Now().Before(end) && ctx.Err() == nil; {
		for n := range s.Clients {
			for _, p := range s.Proxies(n) {
				do(p)
			}
		}
		gap := 100 * time.Millisecond
		if more > 0 {
			gap += s.upTo(more)
		}
		pause(ctx, gap)
	}
}

// silence loses all traffic of a proxy.
func silence(p *faultproxy.Proxy) {
	p.Swallow(faultproxy.ToServer)
	p.Swallow(faultproxy.ToClient)
}

func (s *Scene) heal(client int) {
	for _, p := range s.Proxies(client) {
		p.Heal()
	}
}

func (s *Scene) stop(ctx context.Context, d time.Duration) error {
	n, c := s.holder(ctx)
	defer s.breaks("client %d stops", n)()
	return frozen(ctx, c, d, func() func() { return s.silent(n) })
}

// frozen stops a process for a time. It calls silent after the stop, and over before the process
// continues.
func frozen(ctx context.Context, c Process, d time.Duration, silent func() (over func())) error {
	if err := c.Signal(Stop); err != nil {
		return err
	}
	over := silent()
	pause(ctx, d)
	over()
	return c.Signal(Continue)
}

func stopInSection(ctx context.Context, s *Scene) error {
	n, c := s.holder(ctx)
	waiting, cancel := context.WithTimeout(ctx, 5*s.TTL)
	defer cancel()
	if err := c.StopAtWrite(waiting); err != nil {
		if waiting.Err() != nil {
			return nil // it holds no lock and does not write: try another time
		}
		return err
	}
	defer s.breaks("client %d has stopped before a write", n)()
	over := s.silent(n)
	pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
	over()
	return c.Signal(Continue)
}

func cutReplies(ctx context.Context, s *Scene) error {
	defer s.breaks("answers are lost")()
	for n := range s.Clients {
		defer s.heal(n)
	}
	for end := time.Now().Add(s.TTL); time.Now().Before(end) && ctx.Err() == nil; {
		all := s.Proxies(s.Rand.IntN(len(s.Clients)))
		sprung := all[s.Rand.IntN(len(all))].CutAfterRequest(nil)
		gap := s.upTo(s.TTL / 20)
		select {
		case <-sprung:
			pause(ctx, gap)
		case <-time.After(s.TTL / 10): // no client of that proxy sends a request now
		case <-ctx.Done():
		}
	}
	return nil
}

// stormy is the number of connections of a storm: more than servers allow by default, and few enough
// for the machine.
const stormy = 300

func storm(ctx context.Context, s *Scene) error {
	defer s.breaks("a storm of connections")()
	var mu sync.Mutex
	var open []net.Conn
	defer func() {
		for _, c := range open {
			_ = c.Close()
		}
	}()
	var dialers sync.WaitGroup
	for n := range s.Clients {
		all := s.Proxies(n)
		dialers.Go(func() {
			for i := range stormy / len(s.Clients) {
				c, err := net.DialTimeout("tcp", all[i%len(all)].Addr, time.Second)
				if err != nil {
					continue // the server may refuse
				}
				mu.Lock()
				open = append(open, c)
				mu.Unlock()
			}
		})
		for _, p := range all {
			p.Cut() // a client that has lost its connection needs a new one
		}
	}
	dialers.Wait()
	pause(ctx, s.TTL+s.upTo(s.TTL))
	return nil
}
