package etcdstore

import (
	"context"
	"math"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc"
)

// led makes a member without a leader refuse at once, instead of waiting for one, and
// takes answers of any size: a request whose answer is refused for its size has had its
// effect. The store sees all answers.
type led struct {
	pb.KVClient
	store *Store
}

var anySize = grpc.MaxCallRecvMsgSize(math.MaxInt32)

func (k led) Txn(ctx context.Context, r *pb.TxnRequest, opts ...grpc.CallOption) (*pb.TxnResponse, error) {
	at := k.store.past.sight()
	resp, err := k.KVClient.Txn(clientv3.WithRequireLeader(ctx), r, append(opts, anySize)...)
	k.store.answered(at, resp.GetHeader(), err)
	return resp, err
}

func (k led) Range(ctx context.Context, r *pb.RangeRequest, opts ...grpc.CallOption) (*pb.RangeResponse, error) {
	at := k.store.past.sight()
	resp, err := k.KVClient.Range(clientv3.WithRequireLeader(ctx), r, append(opts, anySize)...)
	k.store.answered(at, resp.GetHeader(), err)
	return resp, err
}

func (k led) DeleteRange(ctx context.Context, r *pb.DeleteRangeRequest, opts ...grpc.CallOption) (*pb.DeleteRangeResponse, error) {
	at := k.store.past.sight()
	resp, err := k.KVClient.DeleteRange(clientv3.WithRequireLeader(ctx), r, append(opts, anySize)...)
	k.store.answered(at, resp.GetHeader(), err)
	return resp, err
}

// Constructors of the parts of etcd requests.

func createRev(name string, rev int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_CREATE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_CreateRevision{CreateRevision: rev},
	}
}

func modRev(name string, rev int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_MOD, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_ModRevision{ModRevision: rev},
	}
}

func createdAfter(name string, rev int64) *pb.Compare {
	c := createRev(name, rev)
	c.Result = pb.Compare_GREATER
	return c
}

func hasValue(name, value string) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_VALUE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_Value{Value: []byte(value)},
	}
}

func onLease(name string, lease int64) *pb.Compare {
	return &pb.Compare{
		Key: []byte(name), Target: pb.Compare_LEASE, Result: pb.Compare_EQUAL,
		TargetUnion: &pb.Compare_Lease{Lease: lease},
	}
}

// nobody is true if no name begins with dir.
func nobody(dir string) *pb.Compare {
	c := createRev(dir, 0)
	c.RangeEnd = []byte(afterDir(dir))
	return c
}

// nobodySince is true if no name that begins with dir was made after rev. With
// rev 0 it is the same as nobody.
func nobodySince(dir string, rev int64) *pb.Compare {
	c := nobody(dir)
	if rev > 0 {
		c.Result, c.TargetUnion = pb.Compare_LESS, &pb.Compare_CreateRevision{CreateRevision: rev + 1}
	}
	return c
}

func put(name, value string, lease int64) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestPut{RequestPut: &pb.PutRequest{
		Key: []byte(name), Value: []byte(value), Lease: lease,
	}}}
}

func remove(name string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestDeleteRange{RequestDeleteRange: &pb.DeleteRangeRequest{
		Key: []byte(name),
	}}}
}

func get(name string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{Key: []byte(name)}}}
}

func listing(dir string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: []byte(dir), RangeEnd: []byte(afterDir(dir)),
	}}}
}

// oldest reads the head of the queue alone.
func oldest(dir string) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestRange{RequestRange: &pb.RangeRequest{
		Key: []byte(dir), RangeEnd: []byte(afterDir(dir)),
		SortTarget: pb.RangeRequest_CREATE, SortOrder: pb.RangeRequest_ASCEND, Limit: 1,
	}}}
}

func nested(t *pb.TxnRequest) *pb.RequestOp {
	return &pb.RequestOp{Request: &pb.RequestOp_RequestTxn{RequestTxn: t}}
}

func ops(o ...*pb.RequestOp) []*pb.RequestOp     { return o }
func only(c ...*pb.Compare) []*pb.Compare        { return c }
func rangeOf(r *pb.ResponseOp) *pb.RangeResponse { return r.GetResponseRange() }
func answerOf(r *pb.ResponseOp) *pb.TxnResponse  { return r.GetResponseTxn() }
