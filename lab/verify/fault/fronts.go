package fault

import (
	"context"
	"slices"
	"syscall"
)

// frontFaults break agents and servers between clients and the store.
var frontFaults = []Fault{
	{
		ID: "f34", Name: "agent-kill", Does: "an agent is killed, and started again: its clients have lost their locks",
		Needs: agents,
		Run:   func(ctx context.Context, s *Scene) error { return s.killOne(ctx, "agent", s.Agents) },
	},
	{
		ID: "f35", Name: "agent-stop", Does: "an agent stops for twice the TTL, and goes on, while its clients work",
		Needs: agents,
		Run: func(ctx context.Context, s *Scene) error {
			n := s.Rand.IntN(len(s.Agents))
			defer s.breaks("agent %d stops", n)()
			return frozen(ctx, s.Agents[n], s.TTL*2+s.upTo(s.TTL/2), func() func() { return func() {} })
		},
	},
	{
		ID: "f36", Name: "replica-kill", Does: "one of the servers of the HTTP API is killed, and started again",
		Needs: func(s *Scene) string {
			if len(s.Replicas) == 0 {
				return "servers of the HTTP API (--clients http)"
			}
			return ""
		},
		Run: func(ctx context.Context, s *Scene) error { return s.killOne(ctx, "server", s.Replicas) },
	},
}

// WithFronts are all faults, including those of agents and servers.
func WithFronts() []Fault { return slices.Concat(All(), frontFaults) }

func agents(s *Scene) string {
	if len(s.Agents) == 0 {
		return "agents (--clients agent)"
	}
	return ""
}

func (s *Scene) killOne(ctx context.Context, name string, all []Process) error {
	n := s.Rand.IntN(len(all))
	defer s.breaks("%s %d is killed", name, n)()
	if err := all[n].Signal(syscall.SIGKILL); err != nil {
		return err
	}
	pause(ctx, s.upTo(s.TTL*3/2))
	return all[n].Revive()
}
