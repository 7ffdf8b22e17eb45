package drivertest

import (
	crand "crypto/rand"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/record"
)

// tokens are those that a wrong comparison or conversion is likely to change.
var tokens = []int64{1, 2, 9, 10, 11, 99, 100, 1<<53 - 1, 1 << 53, 1<<53 + 1, 1<<62 - 1, 1 << 62, 1<<62 + 1, math.MaxInt64 - 1, math.MaxInt64}

func recordRandomCases() []recordCase {
	return []recordCase{{
		name: "random histories",
		why:  "every store says and leaves behind what the state machine of package record does",
		run: func(t *recordTest) {
			random := rand.New(rand.NewPCG(4, 4))
			for n := range 30 {
				h := &recordHistory{recordTest: t, random: random, key: fmt.Sprint("history ", n), from: random.IntN(len(tokens))}
				for step := range 25 {
					h.step(step)
				}
			}
		},
	}}
}

// A recordHistory is one operation, with the record that it should have. The handles take
// turns.
type recordHistory struct {
	*recordTest
	random *rand.Rand
	key    string
	from   int // an index: the tokens of the history are near it
	state  record.State
}

func (h *recordHistory) step(step int) {
	random, s := h.random, h.all[h.random.IntN(len(h.all))]
	a := attempt(h.key, tokens[min(max(h.from+random.IntN(5)-2, 0), len(tokens)-1)])
	if random.IntN(6) == 0 {
		h.from = random.IntN(len(tokens))
	}
	a.Owner = strings.Repeat("ö ", random.IntN(3))
	keep := time.Hour + time.Duration(random.Int64N(int64(check.MaxRecordKeep-time.Hour)))
	now := time.Now().UnixMicro()
	var got driver.Record
	var err, want error
	var did string
	switch act := random.IntN(9); {
	case act == 0:
		did = "forget"
		err = s.ForgetRecord(h.ctx, h.key)
		_, want = h.state.Forget(now)
	case act <= 2:
		kind := random.IntN(3)
		o := driver.Outcome{Failed: kind == 1, Retry: kind == 2, Result: make([]byte, random.IntN(4)*random.IntN(4))}
		crand.Read(o.Result)
		did = fmt.Sprintf("finish %d with %+v", a.Token, o)
		got, err = s.FinishAttempt(h.ctx, a, o, keep)
		_, want = h.state.Finish(a, o, now, keep)
	case act == 3:
		did = "find"
		got, err = s.FindRecord(h.ctx, h.key)
		_, want = h.state.Find(now)
	case act == 4 && h.h.Expire != nil:
		h.h.Expire(h, s, h.key)
		h.state = record.State{}
		return
	default:
		did = fmt.Sprintf("begin %d", a.Token)
		got, err = s.BeginAttempt(h.ctx, a, keep)
		_, want = h.state.Begin(a, now, keep)
	}
	did = fmt.Sprintf("%s, step %d: %s", h.key, step, did)
	if !reflect.DeepEqual(err, want) && !(want == driver.ErrNoRecord && errors.Is(err, want)) {
		h.Fatalf("%s: %v, should be %v", did, outcome(err), want)
	}
	if got.Key == "" || err != nil {
		return
	}
	should := h.state.Record(h.key, now)
	if h.h.NoLeft {
		should.Left = 0
	}
	h.same(did, got, should)
	for what, d := range map[string]time.Duration{
		"began": got.Began.Sub(should.Began), "finished": got.Finished.Sub(should.Finished), "left": got.Left - should.Left,
	} {
		if d.Abs() > 5*time.Minute { // between the call and the look at the clock
			h.Fatalf("%s: %s is off by %v:\n%+v, should be\n%+v", did, what, d, got, should)
		}
	}
}
