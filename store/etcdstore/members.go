package etcdstore

import (
	"context"
	"sync"
	"sync/atomic"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// elsewhere asks a member for what does no harm if it is done twice, because it only
// reads, or writes on conditions that no longer hold afterwards. If no answer has come
// after a while, it also asks the next endpoint, by a separate connection, and so on: a
// member whose disk or process hangs keeps its connections, and so costs only that
// while. Where answers usually take longer, the while is up to twice as long.
//
// twice reports that other members were asked. Then another member may have done the
// request before the one that answered, and it may be done once more, however late.
func elsewhere[T any](ctx context.Context, s *Store, after time.Duration, ask func(context.Context, pb.KVClient, pb.LeaseClient) (T, error)) (resp T, twice bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, giveUp := context.WithCancel(ctx)
	defer giveUp()
	after = s.answers.patient(after)

	var mu sync.Mutex
	var begun, over bool
	type answer struct {
		resp T
		err  error
	}
	others := make(chan answer, 1) // the first answer of another member
	none := make(chan struct{})    // closed when every endpoint has failed
	failed := 0
	fails := func() {
		mu.Lock()
		defer mu.Unlock()
		if failed++; failed == len(s.client.Endpoints()) {
			close(none)
		}
	}
	var next *time.Timer
	another := func() {
		mu.Lock()
		defer mu.Unlock()
		if over {
			return
		}
		begun = true
		next.Reset(after)
		go func() {
			conn, err := s.spare()
			if err != nil {
				fails()
				return
			}
			defer conn.Close()
			resp, err := ask(ctx, led{pb.NewKVClient(conn), s}, pb.NewLeaseClient(conn))
			if err != nil && passing(err) {
				fails()
				return // the next one is asked soon
			}
			select {
			case others <- answer{resp, err}:
				giveUp()
			default:
			}
		}()
	}
	mu.Lock()
	next = time.AfterFunc(after, another)
	mu.Unlock()
	sent := time.Now()
	resp, err = ask(first, s.kv, s.leaser)
	if err == nil {
		s.answers.took(time.Since(sent))
	}
	mu.Lock()
	defer mu.Unlock()
	wait := begun && err != nil && passing(err)
	if !wait {
		over = true
		next.Stop()
		return resp, begun, err
	}
	mu.Unlock()
	select {
	case a := <-others:
		resp, err = a.resp, a.err
	case <-none:
	case <-ctx.Done():
	}
	mu.Lock()
	over = true
	next.Stop()
	return resp, true, err
}

// txn sends a transaction by elsewhere.
func (s *Store) txn(ctx context.Context, after time.Duration, r *pb.TxnRequest) (*pb.TxnResponse, bool, error) {
	return elsewhere(ctx, s, after, func(ctx context.Context, kv pb.KVClient, _ pb.LeaseClient) (*pb.TxnResponse, error) {
		return kv.Txn(ctx, r)
	})
}

// read reads a range by elsewhere.
func (s *Store) read(ctx context.Context, after time.Duration, r *pb.RangeRequest) (*pb.RangeResponse, error) {
	resp, _, err := elsewhere(ctx, s, after, func(ctx context.Context, kv pb.KVClient, _ pb.LeaseClient) (*pb.RangeResponse, error) {
		return kv.Range(ctx, r)
	})
	return resp, err
}

// pace is the longest time that an answer has taken lately. It decays with each faster
// answer.
type pace struct{ longest atomic.Int64 }

// patient is how long to wait for one member before another is asked: after, or up to
// twice that where answers take longer.
func (p *pace) patient(after time.Duration) time.Duration {
	return max(after, min(2*time.Duration(p.longest.Load()), 2*after))
}

func (p *pace) took(d time.Duration) { p.longest.Store(max(int64(d), p.longest.Load()*3/4)) }
