package etcdstore

import (
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	mvccpb "go.etcd.io/etcd/api/v3/mvccpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

// pageSize is the number of names in one read of List.
const pageSize = 500

// Inspect implements driver.Inspector. etcd does not keep the times of names, so ages are
// unknown.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	if err := check.Key(key); err != nil {
		return driver.KeyInfo{}, err
	}
	if err := s.ready(ctx); err != nil {
		return driver.KeyInfo{}, err
	}
	queue, err := s.list(ctx, &lock{key: key, dir: s.dir(key)})
	if err != nil {
		return driver.KeyInfo{}, err
	}
	return s.info(ctx, key, queue, &remaining{}), nil
}

func (s *Store) info(ctx context.Context, key string, queue []contender, left *remaining) driver.KeyInfo {
	info := driver.KeyInfo{Key: key}
	n := holders(queue)
	for i, e := range queue {
		if i >= n {
			info.Waiters = append(info.Waiters, driver.WaiterInfo{
				Owner: e.Owner, Weight: e.Weight, Capacity: e.Capacity, Age: -1,
			})
			continue
		}
		info.Holders = append(info.Holders, driver.HolderInfo{
			Owner: e.Owner, Weight: e.Weight, Capacity: e.Capacity, Token: e.rev,
			Age: -1, Remaining: left.of(ctx, s, e.lease), Foreign: e.foreign, Grant: e.grant(),
		})
	}
	return info
}

func (s *Store) heldError(ctx context.Context, key string, queue []contender) error {
	h := queue[0]
	return &driver.HeldError{
		Key: key, Owner: h.Owner, Foreign: h.foreign, Waiting: len(queue) - holders(queue),
		Remaining: new(remaining).of(ctx, s, h.lease),
	}
}

// remaining is the rest of leases' times, for people only: a new leader does not know it.
type remaining struct {
	mu    sync.Mutex
	known map[int64]time.Duration
}

// of returns the rest of a lease's time, in whole seconds and at least one; 0 if it is
// unknown.
func (r *remaining) of(ctx context.Context, s *Store, lease int64) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	if d, ok := r.known[lease]; ok {
		return d
	}
	var d time.Duration
	if resp, err := s.leaser.LeaseTimeToLive(ctx, &pb.LeaseTimeToLiveRequest{ID: lease}); err == nil && resp.GrantedTTL > 0 {
		d = time.Duration(min(max(resp.TTL, 1), resp.GrantedTTL)) * time.Second
	}
	if r.known == nil {
		r.known = map[int64]time.Duration{}
	}
	r.known[lease] = d
	return d
}

// List implements driver.Inspector. It does not show names without a lease, which are no
// locks.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		if err := s.ready(ctx); err != nil {
			yield(driver.KeyInfo{}, err)
			return
		}
		left := &remaining{}
		next, end := []byte(s.prefix+prefix), prefixEnd(s.prefix+prefix)
		if prefix == "" {
			next = []byte(s.prefix + " ") // names of limits sort before that
		}
		var open []string
		queues := map[string][]*mvccpb.KeyValue{}
		show := func(key string) bool {
			queue := contenders(s.dir(key), key, queues[key])
			delete(queues, key)
			return len(queue) == 0 || yield(s.info(ctx, key, queue, left), nil)
		}
		for more := true; more; {
			resp, err := s.kv.Range(ctx, &pb.RangeRequest{Key: next, RangeEnd: end, Limit: pageSize})
			if err != nil {
				yield(driver.KeyInfo{}, readFailure(ctx, err))
				return
			}
			more = resp.More
			for _, kv := range resp.Kvs {
				next = append(append(next[:0:0], kv.Key...), 0)
				key, ok := s.keyOf(string(kv.Key))
				if !ok || kv.Lease == 0 || !strings.HasPrefix(key, prefix) {
					continue
				}
				if queues[key] == nil {
					open = append(open, key)
				}
				queues[key] = append(queues[key], kv)
			}
			// The names of one key may be among those of other keys that begin with it: a
			// key is complete when the range has left its folder.
			var rest []string
			for _, key := range open {
				if more && string(next) < dirEnd(s.dir(key)) {
					rest = append(rest, key)
				} else if !show(key) {
					return
				}
			}
			open = rest
		}
	}
}

// prefixEnd is the end of the range of names that begin with prefix; a zero byte means no
// end.
func prefixEnd(prefix string) []byte {
	end := []byte(prefix)
	for len(end) > 0 {
		if last := len(end) - 1; end[last] < 0xff {
			end[last]++
			return end
		}
		end = end[:len(end)-1]
	}
	return []byte{0}
}

func (c *contender) grant() string {
	if c.foreign {
		return driver.GrantOf(c.name + "\n" + strconv.FormatInt(c.rev, 10))
	}
	return driver.GrantOf(c.ID)
}

// Break implements driver.Inspector.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (int, error) {
	if err := check.Key(key); err != nil {
		return 0, err
	}
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	k := &lock{key: key, dir: s.dir(key)}
	queue, err := s.list(ctx, k)
	if err != nil {
		return 0, err
	}
	broken := 0
	held := slices.DeleteFunc(queue[:holders(queue)], func(c contender) bool { return !driver.Among(c.grant(), grants) })
	for len(held) > 0 {
		part := held[:min(len(held), maxBatch)]
		held = held[len(part):]
		txn := &pb.TxnRequest{}
		for _, e := range part {
			txn.Success = append(txn.Success, nested(&pb.TxnRequest{
				Compare: only(createRev(e.name, e.rev)), // the name may have another grant now
				Success: ops(remove(e.name)),
			}))
		}
		resp, err := s.kv.Txn(ctx, txn)
		if err != nil {
			return broken, failure(ctx, err)
		}
		for _, r := range resp.Responses {
			if answerOf(r).Succeeded {
				broken++
			}
		}
	}
	return broken, nil
}
