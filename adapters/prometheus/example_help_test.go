package batonprometheus_test

import (
	"github.com/batonhq/baton"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/store/memstore"
)

func connect() *memstore.Store { return memstore.New() }

// serve stands for the program.
func serve(*baton.Locker, *ratelimit.Limiter, *once.Runner, *election.Candidate) {}
