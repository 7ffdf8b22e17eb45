package guard_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/guard"
)

func pass(token int64, holder string) guard.Pass { return guard.Pass{Token: token, Holder: holder} }

// violations shows passes to marks, one after the other, and returns what is wrong
// with the answers.
func violations(ctx context.Context, m guard.Marks) (wrong []string) {
	const big = int64(1) << 53 // from here on floating point numbers have gaps
	series := 0
	for _, c := range []struct {
		why    string
		shown  []guard.Pass
		stale  []int   // the indexes of those that are refused
		last   []int64 // the tokens in the refusals
		plural bool    // each pass has a resource of its own
	}{
		{why: "rising", shown: []guard.Pass{pass(1, "a"), pass(2, "b"), pass(10, "a")}},
		{why: "falling", shown: []guard.Pass{pass(7, "a"), pass(6, "b")}, stale: []int{1}, last: []int64{7}},
		{why: "falling, the same holder", shown: []guard.Pass{pass(7, "a"), pass(6, "a")}, stale: []int{1}, last: []int64{7}},
		{why: "equal, the same holder", shown: []guard.Pass{pass(7, "a"), pass(7, "a"), pass(7, "a")}},
		{why: "equal, no holder", shown: []guard.Pass{pass(7, ""), pass(7, "")}},
		{why: "equal, another holder", shown: []guard.Pass{pass(7, "a"), pass(7, "b"), pass(7, "a")}, stale: []int{1}, last: []int64{7}},
		{why: "equal, another case", shown: []guard.Pass{pass(7, "a"), pass(7, "A"), pass(7, "a "), pass(7, "")}, stale: []int{1, 2, 3}, last: []int64{7, 7, 7}},
		{why: "equal after a refusal", shown: []guard.Pass{pass(7, "a"), pass(8, "b"), pass(7, "a"), pass(8, "b"), pass(8, "a")}, stale: []int{2, 4}, last: []int64{8, 8}},
		{why: "by number, not as text", shown: []guard.Pass{pass(9, "a"), pass(10, "a"), pass(9, "a")}, stale: []int{2}, last: []int64{10}},
		{why: "exact above 2^53", shown: []guard.Pass{pass(big+1, "a"), pass(big, "a"), pass(big+2, "a"), pass(big+1, "a")}, stale: []int{1, 3}, last: []int64{big + 1, big + 2}},
		{why: "exact above 2^32", shown: []guard.Pass{pass(1<<32+1, "a"), pass(7, "a")}, stale: []int{1}, last: []int64{1<<32 + 1}},
		{why: "the highest", shown: []guard.Pass{pass(math.MaxInt64, "a"), pass(math.MaxInt64-1, "a"), pass(math.MaxInt64, "a")}, stale: []int{1}, last: []int64{math.MaxInt64}},
		{why: "holders of every kind", shown: []guard.Pass{pass(1, "host:1"), pass(2, "a b  c "), pass(3, strings.Repeat("é", 64)), pass(3, strings.Repeat("é", 64)), pass(4, `%'"\`), pass(4, `%'"\`)}},
		{why: "other resources", plural: true, shown: []guard.Pass{pass(7, "a"), pass(6, "a"), pass(5, "a"), pass(4, "a"), pass(3, "a"), pass(2, "a")}},
	} {
		series++
		names := []string{"r", "R", "r ", "ré", "re\u0301", "r%_'"}
		for i, p := range c.shown {
			resource := fmt.Sprintf("%d/r", series)
			if c.plural {
				resource = fmt.Sprintf("%d/%s", series, names[i])
			}
			err := m.Raise(ctx, resource, p)
			want := -1
			for n, at := range c.stale {
				if at == i {
					want = n
				}
			}
			stale, ok := errors.AsType[*guard.StaleError](err)
			switch {
			case want < 0 && err != nil:
				wrong = append(wrong, fmt.Sprintf("%s: %d %q: %v", c.why, p.Token, p.Holder, err))
			case want >= 0 && (!ok || !errors.Is(err, guard.ErrStale) || *stale != guard.StaleError{Resource: resource, Token: p.Token, Last: c.last[want]}):
				wrong = append(wrong, fmt.Sprintf("%s: %d %q: %v, want it refused because of %d", c.why, p.Token, p.Holder, err, c.last[want]))
			}
		}
	}
	for _, p := range []guard.Pass{{}, pass(0, "a"), pass(-1, "a"), pass(1, strings.Repeat("x", 129)), pass(1, "a\nb"), pass(1, "\xff")} {
		if _, ok := errors.AsType[*guard.PassError](m.Raise(ctx, "pass", p)); !ok {
			wrong = append(wrong, fmt.Sprintf("%d %.10q passes", p.Token, p.Holder))
		}
	}
	for _, resource := range []string{"", "a\x00", "\xff", strings.Repeat("x", 513)} {
		if _, ok := errors.AsType[*driver.KeyError](m.Raise(ctx, resource, pass(1, "a"))); !ok {
			wrong = append(wrong, fmt.Sprintf("the name %.10q passes", resource))
		}
	}
	if err := m.Raise(ctx, strings.Repeat("x", 512), pass(1, "a")); err != nil {
		wrong = append(wrong, fmt.Sprintf("a name of 512 bytes: %v", err))
	}
	return wrong
}

// conform also compares what an observer is told. store is the name that it is told.
func conform(t *testing.T, m guard.Marks, store string) {
	t.Helper()
	ctx, refusals := observed(t, t.Context())
	for _, v := range violations(ctx, told{m, store, t, refusals}) {
		t.Error(v)
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	conform(t, new(guard.Memory), "memory")
}

// rule is Marks that get the rule wrong.
type rule struct {
	mu       sync.Mutex
	marks    map[string]guard.Pass
	admits   func(last, p guard.Pass) bool
	name     func(string) string
	remember bool // remember also refused passes
}

func (m *rule) Raise(_ context.Context, resource string, p guard.Pass) error {
	if err := new(guard.Memory).Raise(context.Background(), resource, p); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	at := resource
	if m.name != nil {
		at = m.name(resource)
	}
	last, seen := m.marks[at]
	ok := !seen || m.admits(last, p)
	if ok || m.remember {
		if m.marks == nil {
			m.marks = make(map[string]guard.Pass)
		}
		m.marks[at] = p
	}
	if !ok {
		return &guard.StaleError{Resource: resource, Token: p.Token, Last: last.Token}
	}
	return nil
}

func admits(last, p guard.Pass) bool { return p.Token > last.Token || p == last }

// The contract catches common mistakes.
func TestContractCatches(t *testing.T) {
	t.Parallel()
	if wrong := violations(t.Context(), &rule{admits: admits}); len(wrong) > 0 {
		t.Errorf("found in marks that are right: %q", wrong)
	}
	for name, m := range map[string]*rule{
		"equal is enough":       {admits: func(last, p guard.Pass) bool { return p.Token >= last.Token }},
		"equal is never enough": {admits: func(last, p guard.Pass) bool { return p.Token > last.Token }},
		"the same holder is":    {admits: func(last, p guard.Pass) bool { return p.Token > last.Token || p.Holder == last.Holder }},
		"holders are folded": {admits: func(last, p guard.Pass) bool {
			return p.Token > last.Token || p.Token == last.Token && strings.EqualFold(strings.TrimSpace(p.Holder), last.Holder)
		}},
		"as text": {admits: func(last, p guard.Pass) bool { return fmt.Sprint(p.Token) > fmt.Sprint(last.Token) || p == last }},
		"as floating point": {admits: func(last, p guard.Pass) bool {
			return float64(p.Token) >= float64(last.Token) && (p.Token > last.Token || p.Holder == last.Holder)
		}},
		"in 32 bits":              {admits: func(last, p guard.Pass) bool { return int32(p.Token) > int32(last.Token) || p == last }},
		"names are folded":        {admits: admits, name: strings.ToLower},
		"names are trimmed":       {admits: admits, name: strings.TrimSpace},
		"the refused is the last": {admits: admits, remember: true},
		"everybody":               {admits: func(_, _ guard.Pass) bool { return true }},
		"nobody":                  {admits: func(_, _ guard.Pass) bool { return false }},
	} {
		if len(violations(t.Context(), m)) == 0 {
			t.Errorf("marks with the rule %q pass for right", name)
		}
	}
}

func TestStaleErrorSaysWhatToDo(t *testing.T) {
	t.Parallel()
	for want, err := range map[string]error{
		`guard: "r" has seen token 7, which is higher than 6: the lease has ended, acquire the lock again`: &guard.StaleError{Resource: "r", Token: 6, Last: 7},
		`guard: "r" has seen token 7 from another holder: acquire the lock again`:                          &guard.StaleError{Resource: "r", Token: 7, Last: 7},
	} {
		if err.Error() != want {
			t.Errorf("%v", err)
		}
	}
}
