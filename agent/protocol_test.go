package agent

import (
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/batonhq/baton/ratelimit/rules"

	"github.com/batonhq/baton/internal/mutants"
)

func TestParse(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line string
		want request
	}{
		{`{"id":1,"do":"ping"}`, request{ID: 1, Do: "ping"}},
		{` { "do" : "ping" , "id" : 9007199254740991 } ` + "\r\n", request{ID: maxID, Do: "ping"}},
		{`{"id":1,"do":"lock","key":"k"}`, request{ID: 1, Do: "lock", Key: "k"}},
		{`{"id":1,"do":"lock","key":"\u006b\ufb01é","wait_ms":0}`, request{ID: 1, Do: "lock", Key: "kﬁé"}},
		{`{"id":1,"do":"lock","key":"k","mode":"permits","n":2,"of":3,"wait_ms":5,"max_hold_ms":7}`, request{ID: 1, Do: "lock", Key: "k", Mode: "permits", N: 2, Of: 3, WaitMS: 5, MaxHoldMS: 7}},
		{`{"id":1,"do":"lock","keys":["b","a","b"]}`, request{ID: 1, Do: "lock", Keys: []string{"b", "a", "b"}}},
		{`{"id":2,"do":"unlock","lock":1}`, request{ID: 2, Do: "unlock", Lock: 1}},
		{`{"id":2,"do":"check","lock":1}`, request{ID: 2, Do: "check", Lock: 1}},
		{`{"id":2,"do":"who"}`, request{ID: 2, Do: "who"}},
		{`{"id":2,"do":"take","rule":"api","key":"k","tier":"pro","cost":3}`, request{ID: 2, Do: "take", Rule: "api", Key: "k", Tier: "pro", Cost: 3}},
		{`{"id":2,"do":"once","key":"k","request":"r"}`, request{ID: 2, Do: "once", Key: "k", Request: "r"}},
		{`{"id":3,"do":"finish","lock":2,"result":""}`, request{ID: 3, Do: "finish", Lock: 2}},
		{`{"id":2,"do":"who","key":"� is legal"}`, request{ID: 2, Do: "who", Key: "� is legal"}},
	} {
		r, err := parse([]byte(c.line))
		r.has = 0
		if err != nil || !reflect.DeepEqual(r, c.want) {
			t.Errorf("%s: %+v, %v", c.line, r, err)
		}
	}
}

func TestParseRefuses(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		line, want string
		fatal      bool
	}{
		{"", "no JSON object", true},
		{"GET / HTTP/1.1\r\n", "no JSON object", true},
		{`[1]`, "no JSON object", true},
		{`"x"`, "no JSON object", true},
		{`{"id":1,"do":"ping"} {"id":2,"do":"ping"}`, "no JSON object", true},
		{`{"id":1,"do":"ping",}`, "no JSON object", true},
		{"{\"id\":1,\"do\":\"lock\",\"key\":\"\xff\"}", "no JSON object", true},
		{`{"do":"ping"}`, "has an id", true},
		{`{"id":0,"do":"ping"}`, "has an id", true},
		{`{"id":"1","do":"ping"}`, "has an id", true},
		{`{"id":1.5,"do":"ping"}`, "has an id", true},
		{`{"id":9007199254740992,"do":"ping"}`, "has an id", true},
		{`{"id":null,"do":"ping"}`, "has an id", true},
		{`{"id":1}`, "says what to do", false},
		{`{"id":1,"do":null}`, "do is not a string", false},
		{`{"id":1,"do":"loc"}`, `did you mean "lock"?`, false},
		{`{"id":1,"do":"lock","key":"k","wait":5}`, `did you mean "wait_ms"?`, false},
		{`{"wait":{"id":7},"id":1,"do":"lock","key":"k"}`, `no field "wait"`, false},
		{`{"id":1,"do":"lock","Key":"k"}`, `no field "Key"`, false},
		{`{"id":1,"do":"lock","key":"k","key":"l"}`, `"key" is there twice`, false},
		{`{"id":1,"do":"lock","key":"k","\u006bey":"l"}`, `"key" is there twice`, false},
		{`{"id":1,"do":"take","rule":"r","key":"k","also":[{"rule":"r","key":"k","k\u0065y":"l"}]}`, `"key" is there twice`, false},
		{`{"id":1,"do":"take","rule":"r","key":"k","also":[{"rule":"r","key":"k","n":1}]}`, `no field "n"`, false},
		{`{"id":1,"do":"lock","key":["k"]}`, "key is not a string", false},
		{`{"id":1,"do":"lock","key":null}`, "key is not a string", false},
		{`{"id":1,"do":"lock","key":"\ud800"}`, "surrogate", false},
		{`{"id":1,"do":"lock"}`, `lock needs a key, or keys`, false},
		{`{"id":1,"do":"lock","key":"k","keys":["l"]}`, `lock needs a key, or keys`, false},
		{`{"id":1,"do":"lock","keys":[]}`, "list of 1 to 64", false},
		{`{"id":1,"do":"lock","keys":["a",1]}`, "list of 1 to 64", false},
		{`{"id":1,"do":"lock","keys":"a"}`, "list of 1 to 64", false},
		{`{"id":1,"do":"lock","keys":["\ud800"]}`, "surrogate", false},
		{`{"id":1,"do":"who","keys":["a"]}`, `who has no use for "keys"`, false},
		{`{"id":1,"do":"lock","key":"k","lock":1}`, `lock has no use for "lock"`, false},
		{`{"id":1,"do":"unlock","lock":1,"wait_ms":1}`, `unlock has no use for "wait_ms"`, false},
		{`{"id":1,"do":"lock","key":"k","wait_ms":-1}`, "wait_ms is a whole number from 0", false},
		{`{"id":1,"do":"lock","key":"k","wait_ms":1e3}`, "wait_ms is a whole number", false},
		{`{"id":1,"do":"lock","key":"k","wait_ms":99999999999999999999}`, "wait_ms is a whole number", false},
		{`{"id":1,"do":"lock","key":"k","wait_ms":"5"}`, "wait_ms is not a number", false},
		{`{"id":1,"do":"lock","key":"k","max_hold_ms":0}`, "max_hold_ms is a whole number from 1", false},
		{`{"id":1,"do":"lock","key":"k","mode":"read"}`, `mode "read"`, false},
		{`{"id":1,"do":"lock","key":"k","mode":"permits"}`, "needs n and of", false},
		{`{"id":1,"do":"lock","key":"k","mode":"permits","n":4,"of":3}`, "needs n and of", false},
		{`{"id":1,"do":"lock","key":"k","mode":"permits","n":1,"of":1000001}`, "at most 1000000", false},
		{`{"id":1,"do":"finish","lock":1}`, "has a result", false},
		{`{"id":1,"do":"finish","lock":1,"result":"","failed":""}`, "has a result", false},
		{`{"id":1,"do":"take","key":"k"}`, `needs "rule"`, false},
		{`{"id":1,"do":"lock","key":"k","n":1,"of":3}`, "go with mode permits", false},
	} {
		r, err := parse([]byte(c.line))
		var wrong *badRequest
		if !errors.As(err, &wrong) || wrong.fatal != c.fatal || !strings.Contains(wrong.reason, c.want) {
			t.Errorf("%s: %v (%+v)", c.line, err, wrong)
		}
		if !c.fatal && r.ID != 1 {
			t.Errorf("%s: the answer would have the id %d", c.line, r.ID)
		}
	}
}

// FuzzParse: no line makes the parser fail otherwise than by a badRequest, and what it
// accepts means the same to a parser that everybody has.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"do":"lock","key":"k","mode":"permits","n":2,"of":3,"wait_ms":5,"max_hold_ms":7}`,
		`{"id":2,"do":"unlock","lock":1}`, `{"id":1,"do":"who","key":"\ud83d\ude00"}`, `{"id":1,"do":"ping","do":"ping"}`,
		`{"id": 1, "do": "lock", "key": "k", "wait_ms": 0}`, `{"do":"ping","id":9007199254740991}`, `{"id":01,"do":"ping"}`, `{"id":1,"do":"ping",}`,
		`{"id":1e0,"do":"ping"}`, `{"ID":1,"id":2,"do":"ping"}`, "{\"id\":1,\"do\":\"\xc3\x28\"}", `{"id":1,"do":"check","lock":[{}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		mutants.Of(text, func(text []byte) { checkParse(t, text) })
	})
}

func checkParse(t *testing.T, text []byte) {
	ended := append(slices.Clone(text), '\n')
	if short, ok := parseShort(ended); ok {
		if long, err := parseAny(ended); err != nil || !reflect.DeepEqual(short, long) {
			t.Fatalf("%q: %+v the short way, %+v, %v the long way", ended, short, long, err)
		}
	}
	r, err := parse(text)
	if err != nil {
		wrong, ok := errors.AsType[*badRequest](err)
		if !ok || !wrong.fatal && r.ID == 0 {
			t.Fatalf("%q: %v (%T)", text, err, err)
		}
		// What is answered is a line.
		if out := line(answer{ID: r.ID, Error: codeBad, Message: wrong.reason}); !json.Valid(out) || strings.Count(string(out), "\n") != 1 {
			t.Fatalf("%q is answered by %q", text, out)
		}
		return
	}
	var same struct {
		ID        int64    `json:"id"`
		Do        string   `json:"do"`
		Key       string   `json:"key"`
		Keys      []string `json:"keys"`
		Mode      string   `json:"mode"`
		N         int64    `json:"n"`
		Of        int64    `json:"of"`
		WaitMS    int64    `json:"wait_ms"`
		MaxHoldMS int64    `json:"max_hold_ms"`
		Lock      int64    `json:"lock"`
		Take      int64    `json:"take"`
		Value     string   `json:"value"`
		Rule      string   `json:"rule"`
		Tier      string   `json:"tier"`
		Cost      int64    `json:"cost"`
		Also      []struct {
			Rule, Key, Tier string
			Cost            *int64
		} `json:"also"`
		Reserve bool   `json:"reserve"`
		Request string `json:"request"`
		Result  string `json:"result"`
		Failed  string `json:"failed"`
	}
	if err := json.Unmarshal(text, &same); err != nil {
		t.Fatalf("%q is accepted, and is no JSON: %v", text, err)
	}
	r.has = 0
	var also []rules.Part
	for _, p := range same.Also {
		also = append(also, rules.Part{Rule: p.Rule, Key: p.Key, Tier: p.Tier, Cost: 1})
		if p.Cost != nil {
			also[len(also)-1].Cost = *p.Cost
		}
	}
	if got := (request{
		same.ID, same.Do, same.Key, same.Keys, same.Mode, same.N, same.Of, same.WaitMS, same.MaxHoldMS, same.Lock, same.Take,
		same.Value, same.Rule, same.Tier, same.Cost, also, same.Reserve, same.Request, same.Result, same.Failed, 0,
	}); !reflect.DeepEqual(got, r) {
		t.Fatalf("%q: %+v here, %+v elsewhere", text, r, got)
	}
	if _, ok := verbs[r.Do]; !ok || r.ID < 1 || r.ID > maxID || !utf8.ValidString(r.Key) || r.WaitMS < 0 || r.N > r.Of {
		t.Fatalf("%q: accepted as %+v", text, r)
	}
}
