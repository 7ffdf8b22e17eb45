package grpclimit_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	pb "google.golang.org/grpc/interop/grpc_testing"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/grpclimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/store/memstore"
)

func deciding(t *testing.T, decide func(context.Context, grpclimit.Call) (ratelimit.Result, error), opts ...grpclimit.Option) *grpclimit.Interceptor {
	t.Helper()
	i, err := grpclimit.NewFunc(decide, opts...)
	if err != nil {
		t.Fatal(err)
	}
	return i
}

// call sends a call through the interceptor. It reports whether the handler ran.
func call(ctx context.Context, i *grpclimit.Interceptor) (ran bool, err error) {
	_, err = i.Unary(ctx, new(pb.Empty), &grpc.UnaryServerInfo{FullMethod: "/shop.Orders/Place"}, func(context.Context, any) (any, error) {
		ran = true
		return new(pb.Empty), nil
	})
	return ran, err
}

// received is a stream that receives messages without end.
type received struct{ grpc.ServerStream }

func (received) RecvMsg(any) error        { return nil }
func (received) SetTrailer(metadata.MD)   {}
func (received) Context() context.Context { return context.Background() }

// Rules decide about calls, and about messages.
func TestRules(t *testing.T) {
	t.Parallel()
	all, err := rules.Parse("rules.yaml", []byte("rules:\n  - {name: orders, requests: 2, period: 240h}\n"))
	if err != nil {
		t.Fatal(err)
	}
	limiter, err := rules.New(memstore.New(), all)
	if err != nil {
		t.Fatal(err)
	}
	decide := func(ctx context.Context, c grpclimit.Call) (ratelimit.Result, error) {
		d, err := limiter.Allow(ctx, rules.Request{Rule: "orders", Key: c.Client + c.Method})
		return d.Result, err
	}
	i := deciding(t, decide)
	from := func(ip string) context.Context {
		return peer.NewContext(t.Context(), &peer.Peer{Addr: &net.TCPAddr{IP: net.ParseIP(ip), Port: 9}})
	}
	for n, c := range []struct {
		ip   string
		code codes.Code
	}{{"192.0.2.1", codes.OK}, {"192.0.2.1", codes.OK}, {"192.0.2.1", codes.ResourceExhausted}, {"192.0.2.2", codes.OK}} {
		ran, err := call(from(c.ip), i)
		if got := status.Code(err); got != c.code || ran != (c.code == codes.OK) {
			t.Errorf("number %d: %v, want %v; run: %v", n, got, c.code, ran)
		}
	}
	messages := 0
	err = deciding(t, decide, grpclimit.PerMessage()).Stream(nil, received{}, &grpc.StreamServerInfo{FullMethod: "/shop.Orders/Watch"}, func(_ any, s grpc.ServerStream) error {
		for {
			if err := s.RecvMsg(new(pb.Empty)); err != nil {
				return err
			}
			messages++
		}
	})
	if status.Code(err) != codes.ResourceExhausted || messages != 2 {
		t.Errorf("%v after %d messages", err, messages)
	}
}

// A turn is waited for before the handler runs, and not longer than the caller does.
func TestFuncWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		i := deciding(t, func(context.Context, grpclimit.Call) (ratelimit.Result, error) {
			return ratelimit.Result{OK: true, Wait: time.Minute}, nil
		})
		began := time.Now()
		if ran, err := call(t.Context(), i); !ran || err != nil || time.Since(began) != time.Minute {
			t.Errorf("run: %v, %v, after %v", ran, err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if ran, err := call(ctx, i); ran || status.Code(err) != codes.DeadlineExceeded {
			t.Errorf("run: %v, %v", ran, err)
		}
	})
}

func TestFuncThatFails(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	decide := func(context.Context, grpclimit.Call) (ratelimit.Result, error) {
		return ratelimit.Result{OK: true}, boom
	}
	if ran, err := call(t.Context(), deciding(t, decide)); ran || status.Code(err) != codes.Unavailable {
		t.Errorf("run: %v, %v", ran, err)
	}
	var got error
	i := deciding(t, decide, grpclimit.OnError(func(_ context.Context, _ string, err error) error {
		got = err
		return nil
	}))
	if ran, err := call(t.Context(), i); !ran || err != nil || got != boom {
		t.Errorf("run: %v, %v after %v", ran, err, got)
	}
}

func TestFuncsThatCannotBe(t *testing.T) {
	t.Parallel()
	decide := func(context.Context, grpclimit.Call) (ratelimit.Result, error) { return ratelimit.Result{}, nil }
	if _, err := grpclimit.NewFunc(nil); err == nil {
		t.Error("no function")
	}
	for name, o := range map[string]grpclimit.Option{
		"By": grpclimit.By(grpclimit.Method()), "Cost": grpclimit.Cost(func(context.Context, string, any) int64 { return 2 }), "MaxWait": grpclimit.MaxWait(0),
	} {
		if _, err := grpclimit.NewFunc(decide, o); err == nil {
			t.Errorf("%s is accepted", name)
		}
	}
}
