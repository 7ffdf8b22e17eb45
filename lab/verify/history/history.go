// Package history records what the clients of a verification did and saw, and what the resource that
// they guard received. Each event is written when it happens, so a killed client leaves all but its last
// line. The logs are read at the end.
package history

import (
	"math"
	"slices"
	"time"
)

// A History has all known events of one run. Instants are readings of Now, on one machine.
type History struct {
	Holds     []Hold     // in the order of Called
	Decisions []Decision // in the order of Called
	Writes    []Write    // in the order in which the resource received them
	Marks     []Mark     // in the order of At
}

// An Op names an operation: the client (a process) and the operation's number in it.
type Op struct {
	Client int   `json:"client"`
	Number int64 `json:"op"`
}

// A Result is the answer to a client.
type Result string

const (
	Granted Result = "granted"
	Refused Result = "refused" // held by other clients; over the limit
	Failed  Result = "failed"  // an error that guarantees that the request had no effect
	Unknown Result = "unknown" // no answer, or an error that leaves the effect open
)

// A Mode is the kind of a lock.
type Mode string

const (
	Exclusive Mode = "exclusive"
	Shared    Mode = "shared"
	Permits   Mode = "permits"
)

// A Hold is one attempt to get a lock and its result. An instant is zero if the event did not happen, or
// if the client was killed before it logged it.
type Hold struct {
	Op
	Key    string
	Mode   Mode
	Weight int64 // with Permits
	Of     int64 // with Permits
	Waits  bool  // the attempt waits for other holders

	Called, Returned int64
	Result           Result // Unknown if there was no return
	Error            string
	Token            int64

	// The client certainly trusted the lease from SureFrom to SureTo: both are zero if the lease was
	// never seen valid. The trust may have begun earlier and ended later.
	SureFrom, SureTo int64

	ReleaseCalled, ReleaseReturned int64
	Released                       Result // Granted: the lock was held and is released; empty before the return

	LostAt int64 // when the client saw that the lease was lost
	Cause  string
}

// Live reports whether the client logged no end of the hold: neither the return of a release, nor a loss.
func (h *Hold) Live() bool {
	return h.Result == Granted && h.ReleaseReturned == 0 && h.LostAt == 0
}

// Sure reports whether the lease was certainly trusted at some time.
func (h *Hold) Sure() bool { return h.SureFrom != 0 }

// Freed reports whether the store had the hold until its release ended it.
func (h *Hold) Freed() bool { return h.Released == Granted && h.LostAt == 0 }

// A Decision is one request to a limiter.
type Decision struct {
	Op
	Key              string
	N                int64
	Waits            bool          // the request waits for its turn: Returned is then the turn's
	Patience         time.Duration // with Waits: bounds the wait; 0 if there is no known bound
	Hung             bool          // the caller canceled the wait: Result is Unknown
	Called, Returned int64
	Result           Result
	Error            string
	Remaining        int64 // if it was granted or refused
	At               int64 // the time of the decision: microseconds of the store's clock since 1970; 0 if not known
}

// A Write is one attempt to change the guarded resource. The resource has two forms: one checks tokens,
// the other accepts all writes. The first refuses the Stale ones. Only holders of exclusive locks write.
type Write struct {
	Op              // of the hold
	Key      string `json:"key"`
	Token    int64  `json:"token"`
	At       int64  `json:"at"`                 // when the resource received it
	Accepted bool   `json:"accepted,omitempty"` // by the form that checks tokens
	Stale    bool   `json:"stale,omitempty"`    // after a write with a higher token, or with the same token by another holder
}

// A Mark is a moment of a run.
type Mark struct {
	At     int64    `json:"at"`
	What   MarkWhat `json:"mark"`
	Text   string   `json:"text,omitempty"`
	Client int      `json:"client,omitempty"` // with Killed, Silent and Answers; 0: all
}

// MarkWhat is the kind of a Mark.
type MarkWhat string

const (
	Begins  MarkWhat = "begins"  // the clients start working
	Breaks  MarkWhat = "breaks"  // a fault begins
	Heals   MarkWhat = "heals"   // that fault ends
	Silent  MarkWhat = "silent"  // no request of a client is answered from here on
	Answers MarkWhat = "answers" // requests may be answered again from here on
	Ends    MarkWhat = "ends"    // all clients have ended; the remaining ones are killed after this

	// All faults are over: from here on liveness is owed. In a run without faults that is from
	// the beginning.
	Healed MarkWhat = "healed"

	// The clients begin no new operations; waiters continue to wait. When all clients have
	// finished, one of them counts the permits of every key with permits: it takes all of them,
	// with weight 1 and Waits, trusts all at once, and tries for one more without Waits before
	// it releases them. Its requests are the last ones for these keys.
	Drains MarkWhat = "drains"

	// A client is killed, at the instant before the signal. The client that replaces it has
	// another number.
	Killed MarkWhat = "killed"
)

// Mark returns the instant of the first mark of a kind, or 0.
func (h *History) Mark(what MarkWhat) int64 {
	for _, m := range h.Marks {
		if m.What == what {
			return m.At
		}
	}
	return 0
}

// Killed returns the killed clients, and the instants.
func (h *History) Killed() map[int]int64 {
	killed := make(map[int]int64)
	for _, m := range h.Marks {
		if m.What == Killed {
			killed[m.Client] = m.At
		}
	}
	return killed
}

// An Episode is a fault from its beginning to its end.
type Episode struct {
	From, To int64
	Text     string
}

// Episodes are the episodes of the marks, in the order of From. They may overlap. An episode without
// a mark for its end has no end.
func Episodes(marks []Mark) (all []Episode) {
	for _, m := range marks {
		switch m.What {
		case Breaks:
			all = append(all, Episode{m.At, math.MaxInt64, m.Text})
		case Heals:
			if i := slices.IndexFunc(all, func(e Episode) bool { return e.To == math.MaxInt64 && e.Text == m.Text }); i >= 0 {
				all[i].To = m.At
			}
		}
	}
	return all
}

// Duration is the time from one instant to another.
func Duration(from, to int64) time.Duration { return time.Duration(to - from) }
