package etcdstore

import (
	"context"
	"iter"
	"strings"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

var _ limits.Lister = (*Store)(nil)

const statePage = 100

// ListStates implements limits.Lister. The clock is that of this machine. How much longer
// an unknown state is kept is not known.
func (s *Store) ListStates(ctx context.Context, prefix, from string) iter.Seq2[limits.State, error] {
	return func(yield func(limits.State, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(limits.State{}, err)
			return
		}
		dir := s.stateName("")
		next, end := []byte(dir+prefix), prefixEnd(dir+prefix)
		if from != "" && from >= prefix {
			if !strings.HasPrefix(from, prefix) {
				return // it is after all of them
			}
			next = append([]byte(dir+from), 0)
		}
		for more := true; more; {
			resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: next, RangeEnd: end, Limit: statePage})
			if err != nil {
				yield(limits.State{}, readFailure(ctx, err))
				return
			}
			more = resp.More
			wall := s.limits.wall()
			for _, kv := range resp.Kvs {
				next = append(append(next[:0:0], kv.Key...), 0)
				p := &page{numbers: rate.Parse(string(kv.Value))}
				st, ok := rate.Describe(strings.TrimPrefix(string(kv.Key), dir), p.state(), max(wall, p.at()), 0)
				if ok && !yield(st, nil) {
					return
				}
			}
		}
	}
}
