package badstores

import (
	"context"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// The bugs of limiters, by what they do.
const (
	CountsRefused           Bug = "counts what it refuses"
	TakesUpToRefusal        Bug = "takes from the limits before the one that refuses"
	AsksThenTakes           Bug = "asks, and then takes"
	LooksConsume            Bug = "a look consumes"
	LooksAddKeys            Bug = "a look adds a key"
	RoundsWaitsDown         Bug = "rounds waits down"
	ShowsOneLess            Bug = "shows one less"
	FiniteNever             Bug = "tells when to come back with what never fits"
	MintsWhenClockIsSetBack Bug = "gives everything again when the clock is set back"
	LocksOutByClock         Bug = "waits until a clock that was set back has caught up"
	CallersClock            Bug = "goes by the clock of the caller"
	LooksTooEarly           Bug = "dates a look before what it has seen"
	LooksTooLate            Bug = "looks at what was there before the last decision"
	TruncatesToLimit        Bug = "cuts what was taken to the limit that looks"
	ForgetsOtherKinds       Bug = "knows only its own kind of limit"
	ForgetsPromises         Bug = "forgets promised turns when the limit is changed"
	HidesDebt               Bug = "does not tell how long debt lasts"
	ForgetsOnChange         Bug = "begins anew when the limit is changed"
	KeepsForEver            Bug = "never removes what has expired"
	RefundsAnyWindow        Bug = "refunds whatever window it was taken in"
	GivesTurnsTwice         Bug = "gives a turn to two"
	GivesLateTurns          Bug = "gives a turn that is too late"
	ChargesRepeats          Bug = "takes a repeated request again"
	RemembersRefusals       Bug = "answers a repeat of what it refused"
	SharesIDs               Bug = "finds an ID under any key"
	KeepsIDs                Bug = "never forgets an ID"
	FoldsLimitKeys          Bug = "folds the case of keys of limits"
	IgnoresCosts            Bug = "takes the same cost from all limits"
	TakesBadLimits          Bug = "makes something of a bad request"
	TakesAfterEnd           Bug = "takes although the caller has gone"
	EveryDayIsADay          Bug = "takes every day for 24 hours"
	ForgetsTooMuch          Bug = "forgets other keys, too"
	CountsApart             Bug = "counts each process for itself"

	PilesOverrides        Bug = "keeps a second override of a key beside the first"
	CutsOverrides         Bug = "keeps only half of the digits of an override"
	KeepsRemovedOverrides Bug = "keeps an override that was removed"
	OverridesForEver      Bug = "never ends an override"
	OverridesNeverAge     Bug = "tells of an override how long it was set for"
	AnyNumberOfOverrides  Bug = "keeps any number of overrides"
	CountsEndedOverrides  Bug = "counts overrides that have ended"
	FoldsOverrides        Bug = "folds the case of keys of overrides"
	ForgetsOverrides      Bug = "forgets an override with what was taken"
	OverridesRefresh      Bug = "makes a key fresh that is overridden"
	TakesBadOverrides     Bug = "takes a bad override"
	OverridesAfterEnd     Bug = "sets an override although the caller has gone"
)

// LimitsCaughtBy names, for every bug, the case that must catch it.
var LimitsCaughtBy = map[Bug]string{
	ListsWhatRemains:     "list shows what was taken",
	ListConsumes:         "list shows what was taken",
	ListsOneKind:         "list shows one key once, whatever has taken from it",
	ListsIDs:             "list shows one key once, whatever has taken from it",
	ListsFromTheBegin:    "list goes on after a key, in the order of keys",
	ListsInNoOrder:       "list goes on after a key, in the order of keys",
	ListsLimitsByPattern: "list of limits takes prefixes literally",
	SkipsLimits:          "list shows many limits",
	FailsWhereOneWent:    "list while limits come and go",
	ListsWhatCameBack:    "list does not show what has come back",
	ListsLimitsAfterEnd:  "list of limits with a context that has ended",

	CountsRefused:           "timeline: boundary, log",
	TakesUpToRefusal:        "all or nothing",
	AsksThenTakes:           "exactly the capacity",
	LooksConsume:            "exactly the capacity",
	LooksAddKeys:            "a look changes nothing",
	RoundsWaitsDown:         "timeline: a rate that does not divide",
	ShowsOneLess:            "timeline: fresh, 10 in 1 s",
	FiniteNever:             "timeline: token bucket",
	MintsWhenClockIsSetBack: "a clock that jumps",
	LocksOutByClock:         "a clock that jumps",
	CallersClock:            "one clock for all",
	LooksTooEarly:           "a look is of one moment",
	LooksTooLate:            "a look is of one moment",
	TruncatesToLimit:        "other limits give nothing back",
	ForgetsOtherKinds:       "one key, several kinds of limits",
	ForgetsPromises:         "a lowered rate keeps promised turns",
	HidesDebt:               "what is taken anyway tells how long its debt lasts",
	ForgetsOnChange:         "changed limits keep what was taken",
	KeepsForEver:            "what has expired is removed",
	RefundsAnyWindow:        "a refund finds its window",
	GivesTurnsTwice:         "turns of a token bucket",
	GivesLateTurns:          "a turn that is too late takes nothing",
	ChargesRepeats:          "a repeated request is taken once",
	RemembersRefusals:       "a refusal is not remembered",
	SharesIDs:               "an ID belongs to its key",
	KeepsIDs:                "an ID is forgotten in time",
	FoldsLimitKeys:          "odd keys are different limits",
	IgnoresCosts:            "sixteen limits, each with its cost",
	TakesBadLimits:          "bad requests",
	TakesAfterEnd:           "a context that has ended",
	EveryDayIsADay:          "windows of a calendar",
	ForgetsTooMuch:          "forget",
	CountsApart:             "timeline: boundary, fixed window",

	PilesOverrides:        "overrides: set and replaced",
	CutsOverrides:         "overrides: set and replaced",
	KeepsRemovedOverrides: "overrides: removed",
	OverridesForEver:      "overrides: end by themselves",
	OverridesNeverAge:     "overrides: end by themselves",
	AnyNumberOfOverrides:  "overrides: bounded",
	CountsEndedOverrides:  "overrides: bounded",
	FoldsOverrides:        "overrides: odd keys",
	ForgetsOverrides:      "overrides: nothing else is touched",
	OverridesRefresh:      "overrides: nothing else is touched",
	TakesBadOverrides:     "overrides: bad ones",
	OverridesAfterEnd:     "overrides: bad ones",
}

// Limits is a limits.Store with one bug.
type Limits struct {
	bug Bug

	mu     sync.Mutex
	states map[string]limitState
	ids    map[string]remembered
	asked  int64

	overrides []keptOverride
}

type limitState struct {
	state rate.State
	limit limits.Limit
	until time.Time
}

type remembered struct {
	taken limits.Taken
	until time.Time
}

// NewLimits returns an empty store of limits with the bug.
func NewLimits(bug Bug) *Limits {
	return &Limits{bug: bug, states: map[string]limitState{}, ids: map[string]remembered{}}
}

// Kept counts states and IDs.
func (s *Limits) Kept() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.states) + len(s.ids)
}

// Take implements limits.Store, but for the bug.
func (s *Limits) Take(ctx context.Context, t limits.Request) (limits.Taken, error) {
	r, err := rate.NewRequest(s.misread(t))
	if err != nil {
		return limits.Taken{}, err
	}
	if err := ctx.Err(); err != nil && s.bug != TakesAfterEnd {
		return limits.Taken{}, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sweep()
	now := s.now(r)
	if ahead, outside := r.Outside(now); outside {
		return limits.Taken{}, &limits.ClockError{Store: "broken", Ahead: ahead}
	}
	states := s.load(r, now)
	id := r.Takes[0].Key + " " + r.ID
	if s.bug == SharesIDs {
		id = r.ID
	}
	if m, ok := s.ids[id]; ok && r.ID != "" {
		if !m.taken.OK {
			return m.taken, nil
		}
		return r.Repeated(states, now, m.taken.At, m.taken.Wait.Microseconds()), nil
	}
	if s.bug == AsksThenTakes {
		s.mu.Unlock()
		time.Sleep(time.Millisecond) // in fake time: all ask before one takes
		s.mu.Lock()
	}
	d, changed := r.Decide(states, now)
	s.spoil(r, states, d, now)
	if s.keeps(d, changed) {
		s.store(r, states, d)
	}
	if r.ID != "" && (d.OK || s.bug == RemembersRefusals) && s.bug != ChargesRepeats {
		s.ids[id] = remembered{d, time.Now().Add(r.Keep(r.Request.Keep))}
	}
	if s.bug == HidesDebt && t.Mode == limits.TakeAnyway {
		d.Wait, d.Limits[0].Wait = 0, 0
	}
	s.misreport(&d, t.Takes[0].Cost == 0)
	return d, nil
}

func (s *Limits) misread(t limits.Request) limits.Request {
	t.Takes = slices.Clone(t.Takes)
	if s.bug == GivesLateTurns {
		t.TurnWithin = 0
	}
	if s.bug == TakesBadLimits {
		t.Takes = slices.DeleteFunc(t.Takes, func(t limits.Take) bool { return t.Cost < 0 })
	}
	for i := range t.Takes {
		x := &t.Takes[i]
		switch {
		case s.bug == FoldsLimitKeys:
			x.Key = strings.ToLower(x.Key)
		case s.bug == IgnoresCosts:
			x.Cost = t.Takes[0].Cost
		case s.bug == LooksConsume && t.Mode == limits.TakeIfAllowed:
			x.Cost = max(x.Cost, 1)
		case s.bug == EveryDayIsADay && x.Limit.Windows[0] != 0:
			for j := range x.Limit.Windows {
				x.Limit.Windows[j] = x.Limit.Windows[0] + int64(j)*24*time.Hour.Microseconds()
			}
		}
	}
	return t
}

func (s *Limits) now(r *rate.Request) int64 {
	now := r.Now
	if now == 0 {
		now = time.Now().UnixMicro()
		if s.bug == CallersClock { // the clock of every other caller is slow
			s.asked++
			now -= s.asked % 2 * time.Second.Microseconds()
		}
	}
	return now
}

func (s *Limits) sweep() {
	now := time.Now()
	if s.bug != KeepsForEver {
		maps.DeleteFunc(s.states, func(_ string, st limitState) bool { return !now.Before(st.until) })
	}
	if s.bug != KeepsIDs {
		maps.DeleteFunc(s.ids, func(_ string, m remembered) bool { return !now.Before(m.until) })
	}
}

func (s *Limits) load(r *rate.Request, now int64) []rate.State {
	states := make([]rate.State, len(r.Takes))
	for i, t := range r.Takes {
		st := s.states[t.Key]
		states[i] = slices.Clone(st.state)
		ahead := len(st.state) > 1 && time.Duration(st.state[len(st.state)-2]-now)*time.Microsecond > t.Limit.Period
		if s.bug == ForgetsOnChange && st.limit != t.Limit || s.bug == MintsWhenClockIsSetBack && ahead {
			states[i] = nil
		}
		changed := len(st.state) > 0 && st.limit != t.Limit
		switch {
		case s.bug == ForgetsOtherKinds && changed && st.limit.Algorithm != t.Limit.Algorithm:
			states[i] = nil
		case s.bug == TruncatesToLimit && changed && len(st.state) == 4:
			states[i][3] = min(states[i][3], t.Limit.N)
		case s.bug == ForgetsPromises && changed && len(st.state) == 6 && t.Limit.Burst > 0:
			states[i][1] = min(states[i][1], now+t.Limit.Burst*t.Limit.Period.Microseconds()/t.Limit.N)
		}
	}
	return states
}

// spoil changes the states as a decision must not.
func (s *Limits) spoil(r *rate.Request, states []rate.State, d limits.Taken, now int64) {
	for i, l := range r.Limits {
		cost := r.Takes[i].Cost
		switch {
		case s.bug == CountsRefused && !d.OK && cost <= l.Capacity():
			states[i] = l.Charge(states[i], now, cost)
		case s.bug == TakesUpToRefusal && !d.OK:
			if !d.Limits[i].OK {
				return
			}
			states[i] = l.Take(states[i], now, cost)
		case s.bug == RefundsAnyWindow && r.Mode == limits.GiveBack && len(states[i]) == 4:
			states[i][3] -= min(cost, states[i][3]-1)
		case s.bug == GivesTurnsTwice && r.Mode == limits.GiveBack && len(states[i]) == 6:
			states[i][1] -= cost * states[i][4] / states[i][3]
		}
	}
}

func (s *Limits) keeps(d limits.Taken, changed bool) bool {
	switch s.bug {
	case LooksAddKeys, CountsRefused, TakesUpToRefusal, TruncatesToLimit:
		return true
	case LocksOutByClock:
		return changed && d.OK
	}
	return changed
}

func (s *Limits) store(r *rate.Request, states []rate.State, d limits.Taken) {
	if s.bug == ForgetsTooMuch && r.Mode == limits.Forget {
		clear(s.states)
	}
	if s.bug == ForgetsOverrides && r.Mode == limits.Forget {
		s.overrides = nil
	}
	for i, t := range r.Takes {
		if len(states[i]) == 0 && s.bug != LooksAddKeys {
			delete(s.states, t.Key)
			continue
		}
		s.states[t.Key] = limitState{states[i], t.Limit, time.Now().Add(max(r.Keep(d.Limits[i].Reset), time.Millisecond))}
	}
}

func (s *Limits) misreport(d *limits.Taken, look bool) {
	for i := range d.Limits {
		x := &d.Limits[i]
		switch {
		case s.bug == RoundsWaitsDown && !x.OK && x.Retry%time.Millisecond != 0:
			x.Retry -= time.Microsecond
		case s.bug == ShowsOneLess:
			x.Remaining = max(x.Remaining-1, 0)
		case s.bug == LooksTooEarly && look:
			d.At--
		case s.bug == LooksTooLate && look && x.Reset > 0:
			x.Remaining++
		case s.bug == FiniteNever && x.Retry == limits.Never:
			x.Retry = time.Second
		}
	}
}
