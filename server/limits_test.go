package server

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/batonv1"
	"github.com/batonhq/baton/store/memstore"
)

// named serves callers by the name that they say they have, with rules.
func named(t *testing.T, store driver.Locks, text string) string {
	t.Helper()
	all, err := rules.Parse("rules.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	return "http://" + serve(t, replica(t, store, func(c *Config) {
		keeps, ok := driver.As[limits.Store](store)
		if !ok {
			t.Fatal("the store keeps no limits")
		}
		if c.Limits, err = rules.New(keeps, all); err != nil {
			t.Fatal(err)
		}
		c.Caller = func(r *http.Request) (Caller, error) {
			name := r.Header.Get("Caller")
			return someone{name, func(verb, key string) bool {
				return strings.HasPrefix(key, "secret/") || verb == roles.GiveBack && name == "taker"
			}}, nil
		}
	}))
}

const tokenRules = `rules:
- {name: tokens, requests: 1000, period: 1h}
- {name: bucket, requests: 1000, period: 1h, algorithm: token-bucket}
- {name: both, limits: [{name: calls, requests: 2, period: 1h, per_call: true}, {name: cost, requests: 1000, period: 1h}]}
- {name: closed, requests: 5, period: 1h, on_failure: {mode: closed, after: 1s}}
- {name: few, requests: 3, period: 1h}
`

// A look takes nothing, and what is given back can be taken again. An estimate is settled
// once, however often and at any server.
func TestLooksGivesBackAndSettles(t *testing.T) {
	t.Parallel()
	eachStore(t, func(t *testing.T, open func() driver.Store) {
		addrs := []string{named(t, open(), tokenRules), named(t, open(), tokenRules)}
		turn, key := 0, driver.NewID()
		call := func(what, body string, caller ...string) (int, map[string]any) {
			turn++
			status, answer, _ := post(t, addrs[turn%2]+"/baton.v1.Limits/"+what, strings.Replace(body, `"KEY"`, `"`+key+`"`, 1), append([]string{"Caller"}, append(caller, "a")[0])...)
			return status, answer
		}
		remains := func(rule, want string) {
			t.Helper()
			if status, a := call("Take", `{"rule":"`+rule+`","key":"KEY","cost":0}`); status != 200 || a["ok"] != true || a["remaining"] != want || a["reservation"] != "" {
				t.Errorf("%s: a look: %d %v, want %s", rule, status, a, want)
			}
		}
		for _, rule := range []string{"tokens", "bucket"} {
			remains(rule, "1000")
			call("Take", `{"rule":"`+rule+`","key":"KEY","cost":400}`)
			remains(rule, "600")
			if status, a := call("Take", `{"rule":"`+rule+`","key":"KEY","cost":-150}`); status != 200 || a["remaining"] != "750" {
				t.Errorf("given back: %d %v", status, a)
			}
			if status, a := call("Take", `{"rule":"`+rule+`","key":"KEY","cost":"-9223372036854775807"}`); status != 200 || a["remaining"] != "1000" {
				t.Errorf("more than was taken: %d %v", status, a)
			}
			_, a := call("Take", `{"rule":"`+rule+`","key":"KEY","cost":500,"reserve":true}`)
			settle, err := json.Marshal(map[string]any{"reservation": a["reservation"], "cost": 120})
			if err != nil {
				t.Fatal(err)
			}
			remains(rule, "500")
			if status, a := call("Settle", string(settle), "b"); status != 400 {
				t.Errorf("another caller settles: %d %v", status, a)
			}
			var mu sync.Mutex
			var first int
			var all sync.WaitGroup
			for i := range 6 {
				all.Go(func() {
					status, a, _ := post(t, addrs[i%2]+"/baton.v1.Limits/Settle", string(settle), "Caller", "a")
					mu.Lock()
					defer mu.Unlock()
					if status != 200 {
						t.Errorf("settle: %d %v", status, a)
					}
					if a["before"] == false {
						first++
					}
				})
			}
			if all.Wait(); first != 1 {
				t.Errorf("%d of 6 have settled it", first)
			}
			remains(rule, "880")
			_, a = call("Take", `{"rule":"`+rule+`","key":"KEY","cost":80,"reserve":true}`)
			if status, a := call("Settle", `{"cost":"900","reservation":"`+a["reservation"].(string)+`"}`); status != 200 {
				t.Errorf("more than the estimate: %d %v", status, a)
			}
			remains(rule, "0")
		}
	})
}

// With the verb limit alone a caller gives back nothing but the rest of its own
// reservation: others may have taken the rest of the limit.
func TestGivingBackNeedsItsVerb(t *testing.T) {
	t.Parallel()
	addr := named(t, memstore.New(), `rules: [{name: all, requests: 10, period: 1h, for_all: true}, {name: own, requests: 10, period: 1h}]`)
	take := func(caller, body string) (int, any) {
		status, a, _ := post(t, addr+"/baton.v1.Limits/Take", body, "Caller", caller)
		return status, a["remaining"]
	}
	take("other", `{"rule":"all","key":"b/x","cost":8}`)
	for _, body := range []string{
		`{"rule":"all","key":"a/x","cost":-8}`,
		`{"rule":"own","key":"a/x","cost":0,"also":[{"rule":"all","key":"a/x","cost":-8}]}`,
	} {
		if status, _ := take("taker", body); status != 403 {
			t.Errorf("%s: %d, want 403", body, status)
		}
	}
	if status, a := take("taker", `{"rule":"all","key":"a/x","cost":0}`); status != 200 || a != "2" {
		t.Errorf("%d, %v remain, want 2", status, a)
	}
	if status, a := take("giver", `{"rule":"all","key":"a/x","cost":-8}`); status != 200 || a != "10" {
		t.Errorf("with the verb: %d, %v remain, want 10", status, a)
	}
}

// Several rules are decided together, and a look, a cost and what is given back do not mix.
func TestSeveralRules(t *testing.T) {
	t.Parallel()
	addr := named(t, memstore.New(), tokenRules)
	take := func(body string) (int, string) {
		status, a, _ := post(t, addr+"/baton.v1.Limits/Take", body, "Caller", "a")
		if each, ok := a["each"].([]any); ok && len(each) > 0 {
			text := fmt.Sprint(a["ok"], " ", a["remaining"])
			for _, one := range each {
				of := one.(map[string]any)
				text += fmt.Sprint(" ", of["rule"], " ", of["ok"], " ", of["remaining"])
			}
			return status, text
		}
		return status, fmt.Sprint(a["code"], " ", a["message"])
	}
	for _, c := range []struct {
		body   string
		status int
		want   string
	}{
		{`{"rule":"few","key":"u","also":[{"rule":"tokens","key":"org","cost":300}]}`, 200, "true 2 few true 2 tokens true 700"},
		{`{"rule":"few","key":"u","also":[{"rule":"tokens","key":"org","cost":800}]}`, 429, "resource_exhausted"},
		{`{"rule":"few","key":"u","cost":0,"also":[{"rule":"tokens","key":"org","cost":0}]}`, 200, "true 2 few true 2 tokens true 700"},
		{`{"rule":"few","key":"u","cost":0,"also":[{"rule":"tokens","key":"org","cost":100}]}`, 200, "true 2 few true 2 tokens true 600"},
		{`{"rule":"few","key":"u","cost":-1,"also":[{"rule":"tokens","key":"org","cost":-400}]}`, 200, "true 3 few true 3 tokens true 1000"},
		{`{"rule":"few","key":"u","cost":-1,"also":[{"rule":"tokens","key":"org"}]}`, 400, "invalid_argument"},
		{`{"rule":"few","key":"u","cost":2,"also":[{"rule":"tokens","key":"org"}],"reserve":true}`, 400, "invalid_argument"},
		{`{"rule":"few","key":"u","cost":0,"reserve":true}`, 400, "invalid_argument"},
		{`{"rule":"few","key":"u","also":[{"rule":"nothing","key":"u"}]}`, 400, "invalid_argument"},
		{`{"rule":"few","key":"u","also":[{"rule":"tokens","key":"secret/u"}]}`, 403, "permission_denied"},
		{`{"rule":"few","key":"u","also":[{"rule":"tokens"}]}`, 400, "invalid_argument"},
		{`{"rule":"few","key":"u","also":[{"rule":"closed","key":"u"}]}`, 400, "on_failure"},
		{`{"rule":"few","key":"u","cost":"-9223372036854775808"}`, 400, "invalid_argument"},
		{`{"rule":"few","key":"u","also":[` + strings.Repeat(`{"rule":"few","key":"u"},`, 15) + `{"rule":"few","key":"u"}]}`, 400, "at most 16"},
		{`{"rule":"few","key":"u","cost":"NaN"}`, 400, "invalid_argument"},
		{`{"rule":"few","key":"u","cost":1e30}`, 400, "invalid_argument"},
	} {
		if status, got := take(c.body); status != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%s: %d %s, want %d %s", c.body, status, got, c.status, c.want)
		}
	}
	for i, cost := range []string{"50", "0", "50"} { // a call counts unless nothing of it was used
		status, a, _ := post(t, addr+"/baton.v1.Limits/Take", `{"rule":"both","key":"u","cost":200,"reserve":true}`, "Caller", "a")
		if status != 200 {
			t.Fatalf("call %d: %d %v", i, status, a)
		}
		post(t, addr+"/baton.v1.Limits/Settle", `{"cost":"`+cost+`","reservation":"`+a["reservation"].(string)+`"}`, "Caller", "a")
	}
	if status, got := take(`{"rule":"both","key":"u","also":[{"rule":"few","key":"u"}]}`); status != 429 {
		t.Errorf("%d %s, the third call", status, got)
	}
}

// The same by gRPC and by /v1/limit.
func TestLooksByOtherWays(t *testing.T) {
	t.Parallel()
	addr := named(t, memstore.New(), tokenRules)
	ask := func(cost string) (int, any) {
		r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, addr+"/v1/limit", nil)
		if err != nil {
			t.Fatal(err)
		}
		status, a, _ := do(t, r, "Baton-Rule", "few", "Baton-Key", "u", "Baton-Cost", cost)
		return status, a["remaining"]
	}
	for _, c := range []struct {
		cost   string
		status int
		remain any
	}{{"0", 200, "3"}, {"2", 200, "1"}, {"2", 429, "1"}, {"0", 200, "1"}, {"-1", 200, "2"}, {"-5", 200, "3"}, {"NaN", 400, nil}, {"", 400, nil}, {"99999999999999999999", 400, nil}} {
		if status, remain := ask(c.cost); status != c.status || remain != c.remain {
			t.Errorf("cost %q: %d, %v remain, want %d, %v", c.cost, status, remain, c.status, c.remain)
		}
	}
	conn, err := grpc.NewClient("passthrough:///"+strings.TrimPrefix(addr, "http://"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	var res batonv1.TakeResponse
	for _, c := range []struct {
		cost   *int64
		remain int64
	}{{new(int64), 3}, {nil, 2}, {new(int64), 2}} {
		if err := conn.Invoke(t.Context(), "/baton.v1.Limits/Take", &batonv1.TakeRequest{Rule: "few", Key: "u", Cost: c.cost}, &res); err != nil || res.Remaining != c.remain {
			t.Errorf("%v, %v, want %d", &res, err, c.remain)
		}
	}
	for _, bad := range []string{"", "br1.", "br1.AAAA", "bh1.AAAA"} {
		err := conn.Invoke(t.Context(), "/baton.v1.Limits/Settle", &batonv1.SettleRequest{Reservation: bad}, &batonv1.SettleResponse{})
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
