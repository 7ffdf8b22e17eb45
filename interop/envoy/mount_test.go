package envoy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/rls"
	"github.com/batonhq/baton/store/memstore"
)

// team may limit in the domain of its name.
type team string

func (t team) Name() string { return string(t) }

func (t team) May(verb, key string) error {
	if verb != "limit" || key != string(t) {
		return fmt.Errorf("%s may not %s %q", string(t), verb, key)
	}
	return nil
}

// Beside a Server, on its port and behind its door, callers have the rights that they have
// there.
func TestBesideAServer(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	store := memstore.New()
	limiter := limiter(t, store, text)
	main, err := server.New(server.Config{Store: store, Limits: limiter, Caller: func(r *http.Request) (server.Caller, error) {
		name := r.Header.Get("Authorization")
		if name == "" {
			return nil, errors.New("who is that?")
		}
		return team(name), nil
	}})
	if err != nil {
		t.Fatal(err)
	}
	path, service := rls.New(rls.Config{Limiter: limiter, May: func(ctx context.Context, domain string, gives bool) error {
		return main.MayTake(ctx, domain, gives)
	}})
	mux := http.NewServeMux()
	mux.Handle("/", main.Handler())
	mux.Handle(path, main.Guard(service))
	front := server.HTTPServer(mux)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go func() { _ = front.Serve(l) }() // it returns an error when it is closed
	t.Cleanup(func() { _ = front.Close() })
	to := client(t, l.Addr().String())
	for _, c := range []struct {
		name string
		want codes.Code
	}{{"shop", codes.OK}, {"", codes.Unauthenticated}, {"other", codes.PermissionDenied}, {"shop", codes.OK}} {
		ctx := t.Context()
		if c.name != "" {
			ctx = metadata.AppendToOutgoingContext(ctx, "authorization", c.name)
		}
		if out, err := to.ShouldRateLimit(ctx, asking("shop", "user=a")); status.Code(err) != c.want {
			t.Errorf("%q: %v, %v", c.name, out, err)
		}
	}
	resp, err := http.Get("http://" + l.Addr().String() + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		t.Errorf("the server beside it: %s", resp.Status)
	}
}
