package frameworks

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/once/connectonce"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/httplimit"
	"github.com/batonhq/baton/store/memstore"
)

type text = wrapperspb.StringValue

// Clients of each protocol get the limiter's answers as errors of that protocol.
func TestConnect(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	for name, opts := range map[string][]connect.ClientOption{"connect": nil, "gRPC": {connect.WithGRPC()}, "gRPC-Web": {connect.WithGRPCWeb()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store := memstore.New()
			limiter, err := ratelimit.New(store, ratelimit.FixedWindow(3, 1000*time.Hour))
			if err != nil {
				t.Fatal(err)
			}
			ops, err := once.New(store, once.Config{})
			if err != nil {
				t.Fatal(err)
			}
			userOf := func(_ context.Context, r connect.AnyRequest) string { return r.Header().Get("User") }
			runs := 0
			mux := http.NewServeMux()
			newOrdersHandler := func(opts ...connect.HandlerOption) (string, http.Handler) {
				routes := http.NewServeMux()
				routes.Handle("/shop.Orders/Place", connect.NewUnaryHandlerSimple("/shop.Orders/Place", func(ctx context.Context, _ *text) (*text, error) {
					_, limited := httplimit.ResultOf(ctx)
					if _, ok := connectonce.AttemptOf(ctx); !ok || !limited {
						t.Error("no attempt or no result in the context")
					}
					runs++
					return wrapperspb.String("placed"), nil
				}, opts...))
				routes.Handle("/shop.Orders/Watch", connect.NewServerStreamHandlerSimple("/shop.Orders/Watch", func(_ context.Context, _ *text, to *connect.ServerStream[text]) error {
					return to.Send(wrapperspb.String("watched"))
				}, opts...))
				return "/shop.Orders/", routes
			}

			errs := connect.NewErrorWriter()
			limit, err := httplimit.New(limiter,
				httplimit.OnRefused(func(w http.ResponseWriter, r *http.Request, _ ratelimit.Result) {
					_ = errs.Write(w, r, connect.NewError(connect.CodeResourceExhausted, errors.New("too many requests")))
				}),
				httplimit.OnError(func(w http.ResponseWriter, r *http.Request, _ http.Handler, _ error) {
					_ = errs.Write(w, r, connect.NewError(connect.CodeUnavailable, errors.New("the limit cannot be asked for")))
				}))
			if err != nil {
				t.Fatal(err)
			}

			calls, err := connectonce.New(ops, connectonce.Config{Scope: userOf})
			if err != nil {
				t.Fatal(err)
			}

			path, handler := newOrdersHandler(connect.WithInterceptors(calls))
			mux.Handle(path, limit(handler))

			server := httptest.NewUnstartedServer(mux)
			server.EnableHTTP2 = true // which gRPC needs
			server.StartTLS()
			t.Cleanup(server.Close)
			place := func() (*connect.Response[text], error) {
				r := connect.NewRequest(wrapperspb.String("order"))
				r.Header().Set("User", "eve")
				r.Header().Set("Idempotency-Key", "key")
				return connect.NewClient[text, text](server.Client(), server.URL+"/shop.Orders/Place", opts...).CallUnary(t.Context(), r)
			}
			watch := func() error {
				stream, err := connect.NewClient[text, text](server.Client(), server.URL+"/shop.Orders/Watch", opts...).CallServerStream(t.Context(), connect.NewRequest(wrapperspb.String("x")))
				if err != nil {
					return err
				}
				defer stream.Close()
				for stream.Receive() {
					if stream.Msg().GetValue() != "watched" {
						t.Errorf("%v", stream.Msg())
					}
				}
				return stream.Err()
			}
			for n := range 2 {
				answer, err := place()
				if err != nil {
					t.Fatal(err)
				}
				if answer.Msg.GetValue() != "placed" || runs != 1 || (n == 1) != (answer.Header().Get("Idempotency-Replayed") == "true") || answer.Header().Get("RateLimit") == "" {
					t.Errorf("number %d: %v %v, run %d times", n, answer.Msg, answer.Header(), runs)
				}
			}
			if err := watch(); err != nil {
				t.Error(err)
			}
			_, err = place()
			for _, err := range []error{err, watch()} {
				refused, ok := errors.AsType[*connect.Error](err)
				if !ok || refused.Code() != connect.CodeResourceExhausted || refused.Message() != "too many requests" || refused.Meta().Get("Retry-After") == "" {
					t.Errorf("%v", err)
				}
			}
			res, err := server.Client().Get(server.URL + "/shop.Orders/Nothing") // by no protocol
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if res.StatusCode != http.StatusTooManyRequests || res.Header.Get("Retry-After") == "" {
				t.Errorf("%d %v", res.StatusCode, res.Header)
			}
			if err := store.Close(); err != nil {
				t.Fatal(err)
			}
			if _, err := place(); connect.CodeOf(err) != connect.CodeUnavailable {
				t.Errorf("without a store: %v", err)
			}
		})
	}
}
