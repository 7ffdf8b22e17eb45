// Package history records what the clients of a verification did and saw, and what the
// resource that they guard received. It is written line by line while it happens, so
// that a client that is killed leaves all but its last line, and is read at the end.
package history

import (
	"math"
	"slices"
	"time"
)

// A History is everything that is known of one run. Instants are readings of Now, on
// one machine.
type History struct {
	Holds     []Hold     // in the order of Called
	Decisions []Decision // in the order of Called
	Writes    []Write    // in the order in which the resource received them
	Marks     []Mark     // in the order of At
}

// An Op names an operation: the client (a process) and the number that it gave
// to the operation.
type Op struct {
	Client int   `json:"client"`
	Number int64 `json:"op"`
}

// A Result is what a client was told.
type Result string

const (
	Granted Result = "granted"
	Refused Result = "refused" // held by other clients; over the limit
	Failed  Result = "failed"  // an error that says that nothing was done
	Unknown Result = "unknown" // no answer, or an error that leaves open what was done
)

// A Mode is the kind of lock that is asked for.
type Mode string

const (
	Exclusive Mode = "exclusive"
	Shared    Mode = "shared"
	Permits   Mode = "permits"
)

// A Hold is one attempt to get a lock and its result. An instant is zero if the thing
// did not happen, or if the client was killed before it wrote it down.
type Hold struct {
	Op
	Key    string
	Mode   Mode
	Weight int64 // with Permits
	Of     int64 // with Permits
	Waits  bool  // whether it waits for others

	Called, Returned int64
	Result           Result // Unknown if there was no return
	Error            string
	Token            int64

	// The lease was believed in from SureFrom to SureTo without a gap: both are zero if
	// it was never seen valid. The belief may have begun earlier and ended later.
	SureFrom, SureTo int64

	ReleaseCalled, ReleaseReturned int64
	Released                       Result // Granted: it was held and is released; empty before the return

	LostAt int64 // when the client saw that the lease was lost
	Cause  string
}

// Live reports whether the client wrote down no end of the hold: neither a release that
// returned, nor its loss.
func (h *Hold) Live() bool {
	return h.Result == Granted && h.ReleaseReturned == 0 && h.LostAt == 0
}

// Sure reports whether the lease was certainly believed in at some time.
func (h *Hold) Sure() bool { return h.SureFrom != 0 }

// Freed reports whether the store had the hold until its release ended it.
func (h *Hold) Freed() bool { return h.Released == Granted && h.LostAt == 0 }

// A Decision is one request to a limiter.
type Decision struct {
	Op
	Key              string
	N                int64
	Waits            bool          // whether it waits for its turn: Returned is then the turn's
	Patience         time.Duration // with Waits: the longest wait that it accepts; 0 if it does not say
	Hung             bool          // the caller hung up while it waited: Result is Unknown
	Called, Returned int64
	Result           Result
	Error            string
	Remaining        int64 // if it was granted or refused
	At               int64 // when it was decided: microseconds of the store's clock since 1970; 0 if it did not say
}

// A Write is one attempt to change the guarded resource. The resource exists in two
// forms: one that checks tokens and one that does not. The second takes all writes; the
// first would have refused those that are Stale. Only holders of exclusive locks write.
type Write struct {
	Op              // of the hold
	Key      string `json:"key"`
	Token    int64  `json:"token"`
	At       int64  `json:"at"`                 // when the resource received it
	Accepted bool   `json:"accepted,omitempty"` // by the form that checks
	Stale    bool   `json:"stale,omitempty"`    // a higher token, or another holder with the same token, wrote before
}

// A Mark is a moment of the run.
type Mark struct {
	At     int64    `json:"at"`
	What   MarkWhat `json:"mark"`
	Text   string   `json:"text,omitempty"`
	Client int      `json:"client,omitempty"` // with Killed, Silent and Answers; 0: all
}

// MarkWhat says which moment.
type MarkWhat string

const (
	Begins  MarkWhat = "begins"  // the clients are at work
	Breaks  MarkWhat = "breaks"  // a fault sets in
	Heals   MarkWhat = "heals"   // that fault is over
	Silent  MarkWhat = "silent"  // no request of a client is answered from here on
	Answers MarkWhat = "answers" // that may be over from here on
	Ends    MarkWhat = "ends"    // all clients are done; those that are not are killed after this

	// All faults are over: from here on liveness is owed. In a run without faults that
	// is from the beginning.
	Healed MarkWhat = "healed"

	// The clients begin nothing new; waiters go on waiting. When all clients are done,
	// one of them counts the permits of every key with permits: it takes as many as
	// there are, of weight 1, with Waits, believes in all of them at once, and tries
	// for one more without Waits before it releases them. It is the last that asks for
	// these keys.
	Drains MarkWhat = "drains"

	// A client is killed: the instant before the signal. The client that is started
	// instead has another number.
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

// Killed returns the clients that were killed, and when.
func (h *History) Killed() map[int]int64 {
	killed := make(map[int]int64)
	for _, m := range h.Marks {
		if m.What == Killed {
			killed[m.Client] = m.At
		}
	}
	return killed
}

// An Episode is a fault from when it set in until it was over.
type Episode struct {
	From, To int64
	Text     string
}

// Episodes are the episodes of the marks, in the order of From. They may overlap; one
// that was never over has no end.
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
