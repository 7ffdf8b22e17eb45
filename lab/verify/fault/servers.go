package fault

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/batonhq/baton/lab/verify/deploy"
)

// serverFaults break servers, and the connections between them.
var serverFaults = settled([]Fault{
	{
		ID: "f10", Name: "server-kill", Does: "a server is killed, and started again",
		Needs: servers,
		Run: func(ctx context.Context, s *Scene) error {
			n := s.server()
			s.Servers.Servers[n].Kill()
			defer s.breaks("server %d is killed", n)()
			over := func() {}
			if s.alone() {
				over = s.silent(AllClients)
			}
			pause(ctx, s.upTo(s.TTL/2))
			over()
			return s.Servers.Servers[n].Restart()
		},
	},
	{
		ID: "f11", Name: "server-stop", Does: "a server, the leader if there is one, stops for twice the TTL and goes on",
		Needs: servers,
		Run:   stopServer,
	},
	{
		ID: "f12", Name: "leader-kill", Does: "the leader is killed, another takes over, and the old one comes back",
		Needs: leader,
		Run:   killLeader,
	},
	{
		ID: "f13", Name: "leader-isolated", Does: "the leader and one client hear nothing of all others, who find a new leader",
		Needs: func(s *Scene) string {
			if s.Servers == nil || s.Servers.Isolate == nil {
				return "servers of ours of which one leads, and whose wires to each other can be cut"
			}
			return cmp.Or(others(s), wires(s))
		},
		Run: isolateLeader,
	},
	{
		ID: "f14", Name: "majority-lost", Does: "most of the servers stop, or are killed, for twice the TTL",
		Needs: majority,
		Run:   loseMajority,
	},
	{
		ID: "f15", Name: "clock-forward", Does: "the servers' clocks jump forward by an hour; of several that are equals, one does",
		Needs: clocks, Clocks: true,
		Run: func(ctx context.Context, s *Scene) error { return shift(ctx, s, time.Hour) },
	},
	{
		ID: "f16", Name: "clock-back", Does: "the servers' clocks jump back by an hour; of several that are equals, one does",
		Needs: clocks, Clocks: true,
		Run: func(ctx context.Context, s *Scene) error { return shift(ctx, s, -time.Hour) },
	},
	{
		ID: "f18", Name: "disk-full", Does: "the servers' disks have no room for twice the TTL",
		Needs: disks,
		Run:   fillDisks,
	},
	{
		ID: "f19", Name: "script-flush", Does: "the servers forget their scripts, twenty times a second",
		Needs: able("servers of ours that keep scripts", func(d *deploy.Deployment) bool { return d.Scripts != nil }),
		Run: func(ctx context.Context, s *Scene) error {
			defer s.breaks("scripts are forgotten, again and again")()
			return s.every(ctx, 50*time.Millisecond, 2*s.TTL, s.Servers.Scripts)
		},
	},
	{
		ID: "f20", Name: "admin-delete", Does: "an administrator deletes the locks, or everything",
		Needs: able("servers of ours from which locks can be deleted", func(d *deploy.Deployment) bool { return d.Wipe != nil }),
		Run: func(ctx context.Context, s *Scene) error {
			what := []string{"the locks are", "everything is"}
			everything := s.Rand.IntN(len(what))
			defer s.breaks("%s deleted", what[everything])()
			defer pause(ctx, s.TTL+s.upTo(s.TTL))
			return s.Servers.Wipe(everything == 1)
		},
	},
	{
		ID: "f21", Name: "deaf", Does: "what wakes the waiters is cut off, again and again",
		Needs: able("servers of ours that wake those who wait", func(d *deploy.Deployment) bool { return d.Deafen != nil }),
		Run: func(ctx context.Context, s *Scene) error {
			defer s.breaks("nobody is woken")()
			return s.every(ctx, s.TTL/10, 2*s.TTL, s.Servers.Deafen)
		},
	},
	{
		ID: "f23", Name: "reshape", Does: "a server's part goes over to the others, and comes back",
		Needs: able("servers of ours whose parts can go over to others", func(d *deploy.Deployment) bool { return d.Reshape != nil }),
		Run: func(ctx context.Context, s *Scene) error {
			n := s.server()
			defer s.breaks("server %d gives away its part", n)()
			back, err := s.Servers.Reshape(n)
			if err != nil {
				return err
			}
			pause(ctx, s.TTL+s.upTo(s.TTL))
			return back()
		},
	},
	{
		ID: "f25", Name: "old-snapshot", Does: "the servers come back with what they kept some time ago",
		Needs: able("servers of ours that keep what they have on a disk", func(d *deploy.Deployment) bool { return d.Snapshot != nil }),
		Run: func(ctx context.Context, s *Scene) error {
			heals := s.breaks("the servers stop while what they keep is copied")
			restore, err := s.Servers.Snapshot()
			heals()
			if err != nil {
				return err
			}
			pause(ctx, s.TTL+s.upTo(s.TTL))
			defer s.breaks("the servers are set back")()
			return restore()
		},
	},
	{
		ID: "f29", Name: "clock-step", Does: "the servers' clocks jump by 1.6 s or by half of the TTL, forward or back; of several that are equals, one does",
		Needs: clocks, Clocks: true,
		Run: func(ctx context.Context, s *Scene) error {
			step := []time.Duration{1600 * time.Millisecond, s.TTL / 2}[s.Rand.IntN(2)]
			if s.Rand.IntN(2) == 0 {
				step = -step
			}
			return shift(ctx, s, step)
		},
	},
	{
		ID: "f30", Name: "no-push-rights", Does: "no client has the right to use what wakes the waiters",
		Needs: able("servers of ours that give the right to wake those who wait", func(d *deploy.Deployment) bool { return d.Mute != nil }), Owed: true, Callers: true,
		Run: func(ctx context.Context, s *Scene) error {
			restore, err := s.Servers.Mute()
			defer s.breaks("nobody may be woken")()
			pause(ctx, 3*s.TTL)
			return errors.Join(err, restore())
		},
	},
	{
		ID: "f31", Name: "restart-all", Does: "all servers are killed, and started again, while some clients have connections of their own",
		Needs: servers, TTL: patientTTL, Callers: true,
		Run: func(ctx context.Context, s *Scene) error {
			for _, x := range s.Servers.Servers {
				x.Kill()
			}
			defer s.breaks("all servers are killed")()
			over := s.silent(AllClients)
			pause(ctx, s.upTo(s.TTL*2/3))
			over()
			return deploy.RestartAll(s.Servers.Servers)
		},
	},
	{
		ID: "f32", Name: "disk-stall", Does: "what one server writes does not come to its disk, for which it waits, while it goes on answering",
		Needs: able("servers of ours that decide by majority and write to disks that can be stalled", func(d *deploy.Deployment) bool { return d.Quorum && d.Stall != nil }),
		Disks: true, TTL: patientTTL,
		Run: func(ctx context.Context, s *Scene) error {
			n := s.server()
			resume, err := s.Servers.Stall(n)
			if err != nil {
				return err
			}
			defer s.breaks("the disk of server %d stalls", n)()
			pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
			return resume()
		},
	},
	{
		ID: "f33", Name: "hung-member", Does: "a server that does not lead stops for twice the TTL, and its connections stay",
		Needs: majority, TTL: patientTTL,
		Run: func(ctx context.Context, s *Scene) error {
			n, old := s.server(), -1
			if s.Servers.Leader != nil {
				var err error
				if old, err = leads(s.Servers, -1); err != nil {
					return err
				}
			}
			if n == old {
				n = (n + 1) % len(s.Servers.Servers)
			}
			if err := s.Servers.Servers[n].Stop(); err != nil {
				return err
			}
			defer s.breaks("server %d hangs", n)()
			pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
			return s.Servers.Servers[n].Cont()
		},
	},
})

// settled makes each fault return only when the servers work together again.
func settled(faults []Fault) []Fault {
	for i, f := range faults {
		faults[i].Run = func(ctx context.Context, s *Scene) error {
			err := f.Run(ctx, s)
			return errors.Join(err, await("the servers that were broken", s.Servers.Settled))
		}
	}
	return faults
}

// able makes a Needs for an ability that a deployment may lack.
func able(lacks string, can func(*deploy.Deployment) bool) func(*Scene) string {
	return func(s *Scene) string {
		if s.Servers == nil || !can(s.Servers) {
			return lacks
		}
		return ""
	}
}

var (
	servers  = able("servers of ours", func(d *deploy.Deployment) bool { return len(d.Servers) > 0 })
	leader   = able("servers of ours of which one leads", func(d *deploy.Deployment) bool { return d.Leader != nil })
	majority = able("servers of ours that decide by majority", func(d *deploy.Deployment) bool { return d.Quorum })
	clocks   = able("servers of ours whose clocks can be set, and libfaketime", func(d *deploy.Deployment) bool { return d.Shift != nil })
	disks    = able("servers of ours that write to a disk, and the right to mount one that is small", func(d *deploy.Deployment) bool { return d.FillDisk != nil })
)

// server draws a server.
func (s *Scene) server() int { return s.Rand.IntN(len(s.Servers.Servers)) }

// every calls do repeatedly, and continues after errors: servers may be down. It fails if no call
// succeeded.
func (s *Scene) every(ctx context.Context, gap, d time.Duration, do func() error) error {
	var last error
	done := false
	for end := time.Now().Add(d); ; pause(ctx, gap) {
		if err := do(); err != nil {
			last = err
		} else {
			done = true
		}
		if ctx.Err() != nil || time.Now().After(end) {
			break
		}
	}
	if done {
		return nil
	}
	return last
}

// patience bounds the recovery of a cluster.
const patience = time.Minute

// await repeats ask until it returns nil, even after the end of a context: all servers must work
// before the next fault.
func await(what string, ask func() error) error {
	for end := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) { // it polls: servers send no event
		err := ask()
		if err == nil {
			return nil
		}
		if time.Now().After(end) {
			return fmt.Errorf("%s: %w", what, err)
		}
	}
}

// leads returns the leader once it is not old; -1 if there is none.
func leads(d *deploy.Deployment, old int) (now int, err error) {
	err = await("a new leader", func() error {
		var err error
		if now, err = d.Leader(); err == nil && now == old {
			err = fmt.Errorf("server %d still leads", old)
		}
		return err
	})
	return now, err
}

// elect makes another server take over as soon as the leader is silent, until patient is called.
func elect(d *deploy.Deployment) (patient func() error, err error) {
	if d.Elect == nil {
		return func() error { return nil }, nil
	}
	return func() error { return d.Elect(false) }, d.Elect(true)
}

func stopServer(ctx context.Context, s *Scene) (err error) {
	n := s.server()
	if s.Servers.Leader != nil {
		if n, err = leads(s.Servers, -1); err != nil {
			return err
		}
	}
	patient, err := elect(s.Servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, patient()) }()
	if err := s.Servers.Servers[n].Stop(); err != nil {
		return err
	}
	defer s.breaks("server %d stops", n)()
	over := func() {}
	if s.alone() {
		over = s.silent(AllClients)
	}
	pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
	over()
	return s.Servers.Servers[n].Cont()
}

func killLeader(ctx context.Context, s *Scene) (err error) {
	n, err := leads(s.Servers, -1)
	if err != nil {
		return err
	}
	patient, err := elect(s.Servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, patient()) }()
	s.Servers.Servers[n].Kill()
	defer s.breaks("server %d, which leads, is killed", n)()
	_, err = leads(s.Servers, n)
	pause(ctx, s.upTo(s.TTL))
	return errors.Join(err, s.Servers.Servers[n].Restart())
}

func isolateLeader(ctx context.Context, s *Scene) (err error) {
	old, err := leads(s.Servers, -1)
	if err != nil {
		return err
	}
	patient, err := elect(s.Servers)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, patient()) }()
	alone := s.Rand.IntN(len(s.Clients))
	defer s.breaks("server %d, which leads, and client %d are isolated", old, alone)()
	for client := range s.Clients {
		defer s.heal(client)
		for server, p := range s.Proxies(client) {
			if (client == alone) != (server == old) {
				silence(p)
			}
		}
	}
	err = s.Servers.Isolate(old, true)
	if err == nil {
		_, err = leads(s.Servers, old)
	}
	pause(ctx, s.TTL+s.upTo(s.TTL))
	return errors.Join(err, s.Servers.Isolate(old, false))
}

func loseMajority(ctx context.Context, s *Scene) error {
	all := s.Servers.Servers
	var lost []deploy.Server
	for _, n := range s.Rand.Perm(len(all))[:len(all)/2+1] {
		lost = append(lost, all[n])
	}
	heal := func() error { return deploy.RestartAll(lost) }
	what := "killed"
	if s.Rand.IntN(2) == 0 {
		what = "stopped"
		heal = func() error {
			var errs []error
			for _, l := range lost {
				errs = append(errs, l.Cont())
			}
			return errors.Join(errs...)
		}
	}
	var errs []error
	for _, l := range lost {
		if what == "killed" {
			l.Kill()
		} else {
			errs = append(errs, l.Stop())
		}
	}
	defer s.breaks("%d of %d servers are %s", len(lost), len(all), what)()
	over := s.silent(AllClients)
	pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
	over()
	return errors.Join(append(errs, heal())...)
}

// shift makes a clock jump. The clock stays ahead or behind: a jump back would be the other fault.
func shift(ctx context.Context, s *Scene, by time.Duration) error {
	var errs []error
	if s.Servers.Quorum { // of equal servers
		n := s.server()
		errs = append(errs, s.Servers.Shift(n, by))
		defer s.breaks("the clock of server %d jumps by %v", n, by)()
	} else {
		for n := range s.Servers.Servers {
			errs = append(errs, s.Servers.Shift(n, by))
		}
		defer s.breaks("the clocks jump by %v", by)()
	}
	pause(ctx, s.TTL+s.upTo(s.TTL))
	return errors.Join(errs...)
}

func fillDisks(ctx context.Context, s *Scene) error {
	var errs []error
	var heals []func() error
	n := max(len(s.Servers.Servers), 1) // a file has a disk, too
	for i := range n {
		free, err := s.Servers.FillDisk(i)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		heals = append(heals, free)
	}
	defer s.breaks("%d disks are full", len(heals))()
	pause(ctx, s.TTL*2+s.upTo(s.TTL/2))
	for _, free := range heals {
		errs = append(errs, free())
	}
	// Some servers end when they cannot write; others retry only after a minute.
	if len(s.Servers.Servers) > 0 {
		errs = append(errs, deploy.RestartAll(s.Servers.Servers))
	}
	return errors.Join(errs...)
}
