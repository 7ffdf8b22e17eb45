package httplimit

import (
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/internal/front"
)

// item is an item of a list of structured fields, of the kind used here: a string
// with parameters that are integers.
type item struct {
	name       string
	parameters map[string]int64
}

// parseList parses such a list as in RFC 9651, 4.2.
func parseList(s string) (items []item, err error) {
	bad := errors.New("no list of strings with integers: " + s)
	s = strings.Trim(s, " ")
	for len(s) > 0 {
		if s[0] != '"' {
			return nil, bad
		}
		it := item{parameters: make(map[string]int64)}
		i := 1
		for ; ; i++ {
			switch {
			case i == len(s), s[i] < 0x20, s[i] > 0x7e:
				return nil, bad
			case s[i] == '\\':
				if i++; i == len(s) || s[i] != '"' && s[i] != '\\' {
					return nil, bad
				}
				it.name += string(s[i])
				continue
			case s[i] != '"':
				it.name += string(s[i])
				continue
			}
			break
		}
		s = s[i+1:]
		for len(s) > 0 && s[0] == ';' {
			s = strings.TrimLeft(s[1:], " ")
			n := 0
			for n < len(s) && s[n] >= 'a' && s[n] <= 'z' {
				n++
			}
			key := s[:n]
			if n == 0 || n == len(s) || s[n] != '=' {
				return nil, bad
			}
			s = s[n+1:]
			sign, digits, value := int64(1), 0, int64(0)
			if len(s) > 0 && s[0] == '-' {
				sign, s = -1, s[1:]
			}
			for ; digits < len(s) && s[digits] >= '0' && s[digits] <= '9'; digits++ {
				value = 10*value + int64(s[digits]-'0')
			}
			if digits == 0 || digits > 15 {
				return nil, bad
			}
			it.parameters[key] = sign * value
			s = s[digits:]
		}
		items = append(items, it)
		if s = strings.TrimLeft(s, " \t"); s == "" {
			return items, nil
		}
		if s[0] != ',' {
			return nil, bad
		}
		if s = strings.TrimLeft(s[1:], " \t"); s == "" {
			return nil, bad
		}
	}
	return items, nil
}

// All that is written can be parsed, whatever the names and figures are.
func FuzzFields(f *testing.F) {
	f.Add("per-minute", int64(100), int64(40), int64(60_000_000), int64(1), false)
	f.Add(`a"b\c`, int64(1)<<53, int64(-1), int64(1), int64(1)<<40, true)
	f.Add("\x00\u00e9,;=", int64(0), int64(0), int64(0), int64(0), true)
	f.Fuzz(func(t *testing.T, name string, limit, remaining, period, next int64, ok bool) {
		us := func(n int64) time.Duration { return time.Duration(n&(1<<53-1)) * time.Microsecond }
		limit &= 1<<62 - 1
		l := ratelimit.LimitResult{Name: name, OK: ok, Limit: limit, Remaining: remaining, Period: us(period), NextAfter: us(next)}
		a := front.Answer{Result: ratelimit.Result{OK: ok}, Limits: []ratelimit.LimitResult{l, {Name: "other", OK: true, Limit: 1, Remaining: 1}}}
		h := make(http.Header)
		Draft.set(h, a, time.Now())
		policy, err := parseList(h.Get("RateLimit-Policy"))
		if err != nil {
			t.Fatal(err)
		}
		now, err := parseList(h.Get("RateLimit"))
		if err != nil {
			t.Fatal(err)
		}
		if len(policy) != 2 || len(now) != 2 {
			t.Fatalf("%v, %v", policy, now)
		}
		want := strings.Map(func(r rune) rune {
			if r < ' ' || r > '~' {
				return -1
			}
			return r
		}, name)
		for _, it := range []item{policy[0], now[0]} {
			if got := strings.ReplaceAll(it.name, "?", ""); got != strings.ReplaceAll(front.Name(want), "?", "") && name != "" && want != "" {
				t.Errorf("%q became %q", name, it.name)
			}
		}
		seconds := func(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
		if p := policy[0].parameters; p["q"] != min(limit, maxInteger) || p["w"] != seconds(l.Period) || len(p) != 2 {
			t.Errorf("%+v: %v", l, p)
		}
		if p := now[0].parameters; p["r"] != min(max(remaining, 0), maxInteger) || p["t"] != seconds(l.NextAfter) {
			t.Errorf("%+v: %v", l, p)
		}
	})
}

// The problem document names limits as the fields do, so that a client can match the two.
func TestNamesOfViolated(t *testing.T) {
	l := ratelimit.LimitResult{Name: "edge/k\u00e9y\\: \"y\"", RetryAfter: time.Second, Limit: 1, Period: time.Second}
	a := front.Answer{Result: ratelimit.Result{RetryAfter: time.Second}, Limits: []ratelimit.LimitResult{l}}
	w := httptest.NewRecorder()
	refuse(w, a)
	var p problem
	if err := json.Unmarshal(w.Body.Bytes(), &p); err != nil {
		t.Fatal(err)
	}
	h := make(http.Header)
	Draft.set(h, a, time.Now())
	policy, err := parseList(h.Get("RateLimit-Policy"))
	if err != nil || len(policy) != 1 || len(p.Violated) != 1 || policy[0].name != p.Violated[0] {
		t.Errorf("the fields name %v, the document %v, %v", policy, p.Violated, err)
	}
}

func TestParseList(t *testing.T) {
	t.Parallel()
	for _, s := range []string{`a;q=1`, `"a`, `"a\x"`, `"a",`, `"a";q`, `"a";q=`, `"a";q=1234567890123456`, `"a" "b"`, "\"\u00e9\""} {
		if got, err := parseList(s); err == nil {
			t.Errorf("%s is read as %v", s, got)
		}
	}
}
