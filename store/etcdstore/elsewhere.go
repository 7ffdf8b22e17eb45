package etcdstore

import (
	"context"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// elsewhere has a transaction done that does no harm if it is done twice, because
// it reads only, or writes on conditions that it ends itself. If no answer has come
// after a while, the next endpoint is asked, too, by a connection of its own, and so
// on: a member whose disk or process hangs keeps its connections, and costs no more
// than that while.
func (s *Store) elsewhere(ctx context.Context, after time.Duration, r *pb.TxnRequest) (*pb.TxnResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	first, giveUp := context.WithCancel(ctx)
	defer giveUp()

	var mu sync.Mutex
	var begun, over bool
	type answer struct {
		resp *pb.TxnResponse
		err  error
	}
	others := make(chan answer, 1) // the first answer of another
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
				return
			}
			defer conn.Close()
			resp, err := led{pb.NewKVClient(conn), s}.Txn(ctx, r)
			if err != nil && passing(err) {
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
	resp, err := s.kv.Txn(first, r)
	mu.Lock()
	defer mu.Unlock()
	wait := begun && err != nil && passing(err)
	if !wait {
		over = true
		next.Stop()
		return resp, err
	}
	mu.Unlock()
	select {
	case a := <-others:
		resp, err = a.resp, a.err
	case <-ctx.Done():
	}
	mu.Lock()
	over = true
	next.Stop()
	return resp, err
}
