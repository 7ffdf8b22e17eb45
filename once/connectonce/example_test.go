package connectonce_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/connectonce"
	"github.com/batonhq/baton/store/memstore"
)

func Example() {
	ops, err := once.New(memstore.New(), once.Config{}) // or a store that several processes share
	if err != nil {
		panic(err)
	}
	calls, err := connectonce.New(ops, connectonce.Config{
		Scope:    func(_ context.Context, r connect.AnyRequest) string { return r.Header().Get("User") }, // which authentication has checked
		Required: true,
	})
	if err != nil {
		panic(err)
	}
	paid := 0
	pay := func(context.Context, *wrapperspb.Int64Value) (*wrapperspb.StringValue, error) {
		paid++
		return wrapperspb.String(fmt.Sprint("payment ", paid)), nil
	}
	server := httptest.NewServer(connect.NewUnaryHandlerSimple("/shop.Payments/Pay", pay, connect.WithInterceptors(calls)))
	defer server.Close()

	client := connect.NewClient[wrapperspb.Int64Value, wrapperspb.StringValue](http.DefaultClient, server.URL+"/shop.Payments/Pay")
	for range 2 { // the client did not get the first answer, and asks again
		r := connect.NewRequest(wrapperspb.Int64(5))
		r.Header().Set("User", "eve")
		r.Header().Set("Idempotency-Key", "8e03978e-40d5-43dd-bc93-6894a57f9324")
		answer, err := client.CallUnary(context.Background(), r)
		if err != nil {
			panic(err)
		}
		fmt.Println(answer.Msg.GetValue(), answer.Header().Get("Idempotency-Replayed") == "true")
	}
	// Output:
	// payment 1 false
	// payment 1 true
}
