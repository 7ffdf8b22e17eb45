package grpconce_test

import (
	"context"
	"log"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/grpconce"
	"github.com/batonhq/baton/store/memstore"
)

// A server whose calls take effect once for each key that a client sends.
func Example() {
	store := memstore.New() // one that keeps records, and that all servers share
	ops, err := once.New(store, once.Config{})
	if err != nil {
		log.Fatal(err)
	}
	calls, err := grpconce.New(ops, grpconce.Config{
		Scope: func(ctx context.Context) string { // who calls, as the authentication has found
			md, _ := metadata.FromIncomingContext(ctx)
			if user := md.Get("user"); len(user) == 1 {
				return user[0]
			}
			return ""
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(calls.Unary), grpc.StreamInterceptor(calls.Stream))
	l, err := net.Listen("tcp", "127.0.0.1:8080")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(l))
}
