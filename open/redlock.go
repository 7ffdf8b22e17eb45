package open

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redlock"
)

// redlock parses the parameters of a quorum, beside those of its servers.
func (p *params) redlock() redlock.Config {
	return redlock.Config{
		LongestTTL:    p.duration("longest-ttl", redlock.DefaultLongestTTL),
		Durable:       p.flag("durable"),
		AllowReplicas: p.flag("allow-replicas"),
	}
}

func (t *redisTarget) openMember(ctx context.Context) (redlock.OpenMember, error) {
	store, err := t.open(ctx)
	if err != nil {
		return nil, err
	}
	return store, nil
}

func openRedlock(ctx context.Context, a *address) (driver.Store, error) {
	t, err := a.redis()
	if err != nil {
		return nil, a.refuse(err)
	}
	// The order of the servers decides which one has the queue of a key, so it must be
	// the same for all programs.
	slices.Sort(t.addresses)
	var nodes []redlock.Node
	for i, at := range t.addresses {
		if i > 0 && at == t.addresses[i-1] {
			return nil, a.refuse(&redlock.DuplicateError{First: at, Second: at})
		}
		one := *t
		one.addresses = []string{at}
		nodes = append(nodes, redlock.Node{Name: at, Open: one.openMember})
	}
	ctx, cancel := context.WithTimeout(ctx, t.connectTimeout)
	defer cancel()
	store, err := redlock.Open(ctx, nodes, t.quorum)
	switch {
	case err == nil:
		return store, nil
	case errors.As(err, new(*redlock.ReplicatedError)):
		return nil, a.refuse(fmt.Errorf("%w by allow-replicas=true", err))
	case errors.As(err, new(*redlock.CountError)), errors.As(err, new(*redlock.DuplicateError)):
		return nil, a.refuse(err)
	}
	return nil, t.refuse(a, err)
}
