package server

import (
	"errors"
	"fmt"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpcreflect"

	"github.com/batonhq/baton/store/memstore"
)

// Tools of gRPC learn the services and their messages from the server, as callers.
func TestReflection(t *testing.T) {
	t.Parallel()
	known := true
	s := replica(t, memstore.New(), func(c *Config) {
		c.Caller = func(*http.Request) (Caller, error) {
			if !known {
				return nil, errors.New("nobody")
			}
			return anyone{}, nil
		}
	})
	var p http.Protocols
	p.SetUnencryptedHTTP2(true)
	client := grpcreflect.NewClient(&http.Client{Transport: &http.Transport{Protocols: &p}}, "http://"+serve(t, s), connect.WithGRPC())
	stream := client.NewStream(t.Context())
	names, err := stream.ListServices()
	if got := fmt.Sprint(names); err != nil || got != "[baton.v1.Locks baton.v1.Limits baton.v1.Once grpc.health.v1.Health]" {
		t.Errorf("the services are %s, %v", got, err)
	}
	for _, name := range names {
		if files, err := stream.FileContainingSymbol(name); err != nil || len(files) == 0 {
			t.Errorf("%s is described by %d files, %v", name, len(files), err)
		}
	}
	began := time.Now()
	if _, err := stream.Close(); err != nil {
		t.Error(err)
	}
	// A stream that is left open ends with the time that a body may take.
	left := client.NewStream(t.Context())
	if _, err := left.ListServices(); err != nil {
		t.Fatal(err)
	}
	if err := s.Shutdown(t.Context()); err != nil || time.Since(began) > 3*bodyTimeout {
		t.Errorf("Shutdown: %v after %v", err, time.Since(began))
	}
	known = false
	if _, err := client.NewStream(t.Context()).ListServices(); connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("a caller who is not known: %v", err)
	}
}
