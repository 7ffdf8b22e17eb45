package server

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/lockfeed"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/server/batonv1/batonv1connect"
	"github.com/batonhq/baton/store/memstore"
)

// caller calls by JSON at two servers in turn, under a name.
type caller struct {
	t     *testing.T
	addrs [2]string
	turn  int
}

func (c *caller) call(name, method string, body map[string]any) (int, map[string]any) {
	c.t.Helper()
	text, err := json.Marshal(body)
	if err != nil {
		c.t.Fatal(err)
	}
	c.turn++
	status, answer, _ := post(c.t, c.addrs[c.turn%2]+"/baton.v1.Locks/"+method, string(text), "Caller", name)
	return status, answer
}

func (c *caller) want(status int, name, method string, body map[string]any) map[string]any {
	c.t.Helper()
	got, answer := c.call(name, method, body)
	if got != status {
		c.t.Fatalf("%s %s %v: %d %v, want %d", name, method, body, got, answer, status)
	}
	return answer
}

type m = map[string]any

// Several keys are one lease: all or none, renewed, repeated, cancelled and released at any
// server.
func TestKeysInOneLease(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func() driver.Store) {
		c := &caller{t: t, addrs: [2]string{named(t, open(), "rules: []"), named(t, open(), "rules: []")}}
		p := driver.NewID() + "/"
		keys := []string{p + "b", p + "a", p + "b"}
		if status, answer := c.call("x", "Acquire", m{"keys": keys}); status == 501 {
			if answer["code"] != "unimplemented" {
				t.Errorf("%v", answer)
			}
			return // etcd
		} else if answer["state"] != "HELD" {
			t.Fatalf("%d %v", status, answer)
		} else if tokens := answer["tokens"].(m); len(tokens) != 2 || tokens[p+"a"] == "0" || answer["token"] != "0" {
			t.Errorf("%v", answer)
		} else {
			c.want(200, "x", "Renew", m{"handle": answer["handle"]})
			c.want(400, "y", "Renew", m{"handle": answer["handle"]})
			if a := c.want(200, "y", "Acquire", m{"keys": []string{p + "c", p + "b"}}); a["state"] != "REFUSED" || len(a["holders"].([]any)) != 1 {
				t.Errorf("one of them is held: %v", a)
			}
			other := c.want(200, "y", "Acquire", m{"key": p + "c"}) // nothing was left of it
			if other["state"] != "HELD" {
				t.Errorf("%v", other)
			}
			c.want(200, "y", "Release", m{"handle": other["handle"]})
			c.want(200, "x", "Release", m{"handle": answer["handle"]})
			c.want(404, "x", "Release", m{"handle": answer["handle"]})
			c.want(404, "x", "Renew", m{"handle": answer["handle"]})
		}
		op := driver.NewID()
		ask := m{"keys": keys, "op": op, "ttl_ms": 30000}
		first := c.want(200, "x", "Acquire", ask)
		ask["retry"] = true
		again := c.want(200, "x", "Acquire", ask)
		if first["state"] != "HELD" || again["state"] != "HELD" || fmt.Sprint(first["tokens"]) != fmt.Sprint(again["tokens"]) {
			t.Errorf("a repetition: %v, %v", first, again)
		}
		wait := m{"keys": []string{p + "a"}, "op": driver.NewID(), "wait_ms": 300}
		if a := c.want(200, "y", "Acquire", wait); a["state"] != "WAITING" {
			t.Errorf("%v", a)
		}
		c.want(200, "x", "Cancel", m{"keys": keys, "op": op, "ttl_ms": 30000})
		if a := c.want(200, "y", "Acquire", wait); a["state"] != "HELD" {
			t.Errorf("%v", a)
		}
	})
}

func TestKeysThatAreRefused(t *testing.T) {
	t.Parallel()
	addr := named(t, memstore.New(), "rules: []")
	c := &caller{t: t, addrs: [2]string{addr, addr}}
	many := make([]string, 65)
	for i := range many {
		many[i] = fmt.Sprint("k", i)
	}
	for _, bad := range []m{
		{"key": "a", "keys": []string{"b"}},
		{"keys": []string{"a", ""}},
		{"keys": []string{"a", "once/x"}},
		{"keys": []string{"a", "x\ny"}},
		{"keys": []string{"a"}, "shared": true},
		{"keys": []string{"a"}, "permits": 1, "of": 2},
		{"keys": many},
		{"keys": []string{"a"}, "instance": strings.Repeat("x", 257)},
		{"keys": []string{"a"}, "owner": strings.Repeat("x", 120), "instance": "i"}, // with its tag
	} {
		c.want(400, "x", "Acquire", bad)
	}
	c.want(403, "x", "Acquire", m{"keys": []string{"a", "secret/b"}})
	c.want(400, "x", "Cancel", m{"key": "a", "keys": []string{"b"}, "op": someOp})
	if a := c.want(200, "x", "List", m{}); len(a["locks"].([]any)) != 0 {
		t.Errorf("left: %v", a)
	}
}

// Two callers that want overlapping keys both get them, one after the other.
func TestKeysAreWaitedFor(t *testing.T) {
	t.Parallel()
	addr := named(t, memstore.New(), "rules: []")
	c := &caller{t: t, addrs: [2]string{addr, addr}}
	first := c.want(200, "x", "Acquire", m{"key": "b"})
	got := make(chan string)
	go func() {
		status, answer, _ := post(t, addr+"/baton.v1.Locks/Acquire", `{"keys":["a","b"],"wait_ms":20000}`, "Caller", "y")
		got <- fmt.Sprint(status, answer["state"])
	}()
	c.want(200, "x", "Release", m{"handle": first["handle"]})
	if s := <-got; s != "200HELD" {
		t.Error(s)
	}
}

// ReleaseAll releases the leases of a killed client by the name of its instance, and no
// others.
func TestReleaseAll(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func() driver.Store) {
		store := open()
		c := &caller{t: t, addrs: [2]string{named(t, store, "rules: []"), named(t, open(), "rules: []")}}
		p := driver.NewID() + "/"
		hold := func(name, key, instance string) string {
			t.Helper()
			a := c.want(200, name, "Acquire", m{"key": p + key, "instance": instance, "owner": "job"})
			if a["state"] != "HELD" {
				t.Fatalf("%v", a)
			}
			return a["handle"].(string)
		}
		gone, gone2 := hold("x", "1", "web-7"), hold("x", "2", "web-7")
		stays := []string{hold("x", "3", "web-70"), hold("x", "4", "")}
		other := hold("y", "5", "web-7")
		shown := fmt.Sprint(c.want(200, "x", "List", m{"prefix": p + "1"}))
		if strings.Contains(shown, "web-7") {
			t.Error("the name of an instance is shown")
		}
		_, tag, _ := strings.Cut(shown, "[x] job ~#")
		copied := c.want(200, "y", "Acquire", m{"key": p + "6", "owner": "[x] job ~#" + tag[:12]})
		c.want(400, "x", "ReleaseAll", m{"prefix": p})
		if a := c.want(200, "x", "ReleaseAll", m{"instance": "web-7", "prefix": p + "nothing"}); a["holders"] != 0.0 {
			t.Errorf("below another prefix: %v", a)
		}
		if a := c.want(200, "x", "ReleaseAll", m{"instance": "web-7", "prefix": p}); a["holders"] != 2.0 {
			t.Errorf("%v", a)
		}
		if a := c.want(200, "x", "ReleaseAll", m{"instance": "web-7", "prefix": p}); a["holders"] != 0.0 {
			t.Errorf("again: %v", a)
		}
		for _, handle := range []string{gone, gone2} {
			c.want(404, "x", "Renew", m{"handle": handle})
		}
		for _, handle := range stays {
			c.want(200, "x", "Renew", m{"handle": handle})
		}
		c.want(200, "y", "Renew", m{"handle": other})
		c.want(200, "y", "Renew", m{"handle": copied["handle"]})
	})
}

// ReleaseAll looks at no more locks than a caller may have, and than one call may.
func TestReleaseAllIsBounded(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	addr := named(t, store, "rules: []")
	c := &caller{t: t, addrs: [2]string{addr, addr}}
	for _, prefix := range []string{"secret/", "once/secret/"} {
		c.want(403, "x", "ReleaseAll", m{"instance": "web-7", "prefix": prefix})
	}
	for i := range lockfeed.MaxKeys + 1 {
		claim := driver.Claim{Key: fmt.Sprint("k", i), ID: driver.NewID(), Owner: "o", Weight: driver.Whole, Capacity: driver.Whole}
		if _, err := store.Acquire(t.Context(), driver.Request{Claim: claim, TTL: time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	c.want(200, "x", "ReleaseAll", m{"instance": "web-7", "prefix": "k1"})
	c.want(429, "x", "ReleaseAll", m{"instance": "web-7"})
}

// An election: the value of the leader, that it changes, and that others ask it to give way.
func TestElectionOverTheNetwork(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	addr := named(t, store, "rules: []")
	c := &caller{t: t, addrs: [2]string{addr, addr}}
	leader := func() string {
		t.Helper()
		a := c.want(200, "y", "Leader", m{"key": "job"})
		return fmt.Sprint(a["led"], " ", a["value"])
	}
	if got := leader(); got != "false " {
		t.Error(got)
	}
	c.want(403, "y", "Leader", m{"key": "secret/job"})
	c.want(400, "y", "Leader", m{"key": ""})

	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(addr, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	observe := func(name, key string) grpc.ServerStreamingClient[batonv1.LeaderResponse] {
		t.Helper()
		stream, err := conn.NewStream(metadata.AppendToOutgoingContext(t.Context(), "caller", name), &grpc.StreamDesc{ServerStreams: true}, "/baton.v1.Locks/Observe")
		if err != nil {
			t.Fatal(err)
		}
		one := &grpc.GenericClientStream[batonv1.LeaderRequest, batonv1.LeaderResponse]{ClientStream: stream}
		if err := one.ClientStream.SendMsg(&batonv1.LeaderRequest{Key: key}); err != nil {
			t.Fatal(err)
		}
		if err := one.ClientStream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		return one
	}
	if _, err := observe("y", "secret/job").Recv(); status.Code(err) != codes.PermissionDenied {
		t.Error(err)
	}
	seen := observe("y", "job")
	next := func(want string) {
		t.Helper()
		r, err := seen.Recv()
		if err != nil || fmt.Sprint(r.Led, " ", r.Value) != want {
			t.Errorf("%v, %v, want %s", r, err, want)
		}
	}
	next("false ")
	held := c.want(200, "x", "Acquire", m{"key": "job", "owner": "http://10.0.0.7: old", "instance": "i"})
	next("true http://10.0.0.7: old")
	c.want(200, "x", "Proclaim", m{"handle": held["handle"], "value": "new", "instance": "i"})
	next("true new")
	if got := leader(); got != "true new" {
		t.Error(got)
	}
	c.want(400, "y", "Proclaim", m{"handle": held["handle"], "value": "stolen"})
	c.want(400, "x", "Proclaim", m{"handle": held["handle"], "value": "a\nb"})
	c.want(400, "x", "Proclaim", m{"handle": held["handle"], "value": strings.Repeat("x", 200)})

	if a := c.want(200, "x", "Renew", m{"handle": held["handle"], "asked": true}); len(a["asked"].([]any)) != 0 {
		t.Errorf("%v", a)
	}
	c.want(200, "y", "Acquire", m{"key": baton.AskPrefix + "job", "shared": true, "owner": "deploy"})
	if a := c.want(200, "x", "Renew", m{"handle": held["handle"], "asked": true}); fmt.Sprint(a["asked"]) != "[[y] deploy]" {
		t.Errorf("%v", a)
	}
	if a := c.want(200, "x", "ReleaseAll", m{"instance": "i"}); a["holders"] != 1.0 {
		t.Errorf("after Proclaim: %v", a)
	}
	next("false ")
	c.want(404, "x", "Proclaim", m{"handle": held["handle"], "value": "late"})
}

// The value of a leader comes back as the leader gave it, to the server or to the library.
func TestValueComesBackWhole(t *testing.T) {
	t.Parallel()
	store := memstore.New()
	addr := named(t, store, "rules: []")
	c := &caller{t: t, addrs: [2]string{addr, addr}}
	library, err := baton.New(store, baton.Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, value := range []string{"http: 10.0.0.7", "word: and: more", "] x", "#7 ~#", "order #123456789012"} {
		lease, err := library.TryLock(t.Context(), "library", baton.Owner(value))
		if err != nil {
			t.Fatal(err)
		}
		if a := c.want(200, "y", "Leader", m{"key": "library"}); a["value"] != value {
			t.Errorf("%q came back as %q", value, a["value"])
		}
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
	}
	for _, value := range []string{"http: 10.0.0.7", "[a] b: c", "] x", "order ~#123456789012", "x ~#123456789012 ~#123456789012"} {
		for _, instance := range []string{"", "i"} {
			for _, name := range []string{"x", "cn:Jane Doe", "cn:a] [b"} { // of certificates
				a := c.want(200, name, "Acquire", m{"key": "server", "owner": value, "instance": instance})
				if a := c.want(200, "y", "Leader", m{"key": "server"}); a["value"] != value {
					t.Errorf("%q of %s came back as %q", value, name, a["value"])
				}
				c.want(200, name, "Release", m{"handle": a["handle"]})
			}
		}
	}
}

// A server that is being stopped ends its streams, and so does a caller that has too many.
func TestStreamsEnd(t *testing.T) {
	t.Parallel()
	s := replica(t, memstore.New())
	addr := serve(t, s)
	conn, err := grpc.NewClient("passthrough:///"+addr, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var all []grpc.ClientStream
	for range maxStreams + 1 {
		stream, err := conn.NewStream(t.Context(), &grpc.StreamDesc{ServerStreams: true}, "/baton.v1.Locks/Observe")
		if err == nil {
			err = stream.SendMsg(&batonv1.LeaderRequest{Key: "job"})
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, stream)
	}
	busy := 0
	for _, stream := range all {
		switch err := stream.RecvMsg(&batonv1.LeaderResponse{}); {
		case status.Code(err) == codes.ResourceExhausted:
			busy++
		case err != nil:
			t.Error(err)
		}
	}
	if busy != 1 {
		t.Errorf("%d streams are refused, want 1", busy)
	}
	if err := s.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	for _, stream := range all {
		if err := stream.RecvMsg(&batonv1.LeaderResponse{}); status.Code(err) != codes.Unavailable && status.Code(err) != codes.ResourceExhausted {
			t.Error(err)
		}
	}
}

// A stream that ends because the roles have changed is denied as a call is: the audit has it.
func TestStreamOfChangedRole(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var audit bytes.Buffer
		s := replica(t, memstore.New(), func(c *Config) { c.Audit = slog.New(slog.NewTextHandler(&audit, nil)) })
		c := &call{caller: someone{name: "a"}, clear: func() {}, within: func(time.Duration) {}, again: func() (Caller, error) {
			return someone{"a", func(string, string) bool { return true }}, nil
		}}
		err := s.stream(context.WithValue(t.Context(), callKey{}, c), &s.streams, 1, roles.Lock, "k", func(ctx context.Context, _ *call, _ sender) error {
			<-ctx.Done()
			return nil
		})
		wantCode(t, err, connect.CodePermissionDenied)
		if !strings.Contains(audit.String(), `"a call was denied" caller=a`) {
			t.Errorf("the audit has %q", audit.String())
		}
	})
}

// The end of an observer's deadline is no failure of the store.
func TestObserverHasDeadline(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	s := replica(t, memstore.New(), func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	question := `{"key":"job"}`
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+serve(t, s)+batonv1connect.LocksObserveProcedure, strings.NewReader("\x00\x00\x00\x00"+string(rune(len(question)))+question))
	if err != nil {
		t.Fatal(err)
	}
	r.Header = http.Header{"Content-Type": {"application/connect+json"}, "Connect-Timeout-Ms": {"300"}} // and it does not hang up itself
	res, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	said, err := io.ReadAll(res.Body)
	_ = res.Body.Close()
	if err != nil || strings.Contains(string(said), `"unknown":true`) || strings.Contains(string(said), "unavailable") || !strings.Contains(string(said), `"led":false`) {
		t.Errorf("%q, %v", said, err)
	}
	if err := s.Shutdown(t.Context()); err != nil { // waits for what the server does
		t.Error(err)
	}
	if log.Len() > 0 {
		t.Errorf("the log says %s", log.String())
	}
}
