package metrics

import "slices"

// Instruments are all instruments.
func Instruments() []Instrument { return slices.Clone(table) }

var (
	store     = Label{"baton.store", "the short name of the store: `redis`"}
	class     = Label{"baton.class", "what `Config.Class` makes of the key: without one, what stands before its first `/`, or `none`; `other` beyond 50 values"}
	mode      = Label{"baton.mode", "what was asked for: `exclusive`, `shared` or `permits`"}
	cause     = Label{"baton.cause", "why the lease ended: `expired`, `gone` or `overheld`, and in error.type also `detached`"}
	limit     = Label{"baton.limit", "the name of the limit, or `unnamed`; of several limits, the tightest one; `other` beyond 50 values"}
	outcome   = Label{"baton.outcome", "of a decision `allowed`, `refused` or `error`; of an operation `succeeded`, `failed`, `unrecorded`, `replayed` or `superseded`"}
	by        = Label{"baton.by", "who decided: `store`, `batch`, or in place of a store that fails `open`, `closed` or `local`"}
	operation = Label{"baton.operation", "what was called: `allow`, `reserve` or `wait`"}
	errorType = Label{"error.type", "the class of the error: `held`, `lost`, `unavailable`, `unknown`, `canceled` or `refused`, or why a lease has ended, as baton.cause; empty without an error"}
	system    = Label{"db.system.name", "the name that OpenTelemetry has for the store's system: `redis`, `postgresql`, `mysql`, `sqlite`, `etcd`, `zookeeper`, `memory`"}
	request   = Label{"db.operation.name", "the request: `acquire`, `renew`, `release`, …"}
)

// Buckets, in seconds.
var (
	waits    = []float64{0.0005, 0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300}
	holds    = []float64{0.001, 0.01, 0.1, 0.5, 1, 5, 10, 30, 60, 300, 900, 3600}
	requests = []float64{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10} // of the semantic conventions
	slacks   = []float64{0, 0.25, 0.5, 1, 1.5, 2, 3, 4, 5, 7.5, 10, 15, 30, 60}
	terms    = []float64{1, 10, 60, 600, 3600, 6 * 3600, 24 * 3600, 7 * 24 * 3600}
)

var (
	lockWait = Instrument{
		"baton.lock.wait", Histogram, "s", "How long calls for a lock took, until they had it or failed.",
		[]Label{store, class, mode, errorType},
		waits,
	}
	lockHold     = Instrument{"baton.lock.hold", Histogram, "s", "How long locks were held, until they were released or lost.", []Label{store, class}, holds}
	lockAcquired = Instrument{"baton.lock.acquired", Counter, "{lock}", "Locks that were acquired.", []Label{store, class, mode}, nil}
	lockFailed   = Instrument{"baton.lock.failed", Counter, "{call}", "Calls for a lock that ended without one.", []Label{store, class, mode, errorType}, nil}
	lockLost     = Instrument{"baton.lock.lost", Counter, "{lock}", "Locks that were lost: others may have acquired them while the holder worked.", []Label{store, class, cause}, nil}
	lockReleased = Instrument{"baton.lock.released", Counter, "{lock}", "Locks that were released or detached.", []Label{store, class, errorType}, nil}
	lockHeld     = Instrument{"baton.lock.held", Gauge, "{lock}", "Locks that this process holds.", []Label{store, class}, nil}
	lockWaiting  = Instrument{"baton.lock.waiting", Gauge, "{call}", "Calls of this process that wait for a lock.", []Label{store, class}, nil}
	lockOldest   = Instrument{
		"baton.lock.waiting.oldest", Sampled, "s", "For how long the oldest of these calls has waited: 0 if none waits.",
		[]Label{store, class},
		nil,
	}

	renewalClaims   = Instrument{"baton.renewal.claims", Counter, "{claim}", "Leases and positions in a queue that this process asked its store to renew.", []Label{store}, nil}
	renewalFailed   = Instrument{"baton.renewal.failed", Counter, "{claim}", "Of these, those that the store could not answer; they are asked about again.", []Label{store}, nil}
	renewalDuration = Instrument{"baton.renewal.duration", Histogram, "s", "How long a request to renew took.", []Label{store, errorType}, requests}
	renewalSlack    = Instrument{
		"baton.renewal.slack", Histogram, "s", "How much time the tightest lease had left when it was renewed: the smallest values say how near to a loss the process was.",
		[]Label{store},
		slacks,
	}

	limitDecisions   = Instrument{"baton.limit.decisions", Counter, "{decision}", "Decisions about rates.", []Label{store, limit, outcome, by}, nil}
	limitWouldRefuse = Instrument{"baton.limit.would_refuse", Counter, "{decision}", "Decisions that a Shadow limit would have refused.", []Label{store, limit}, nil}
	limitNear        = Instrument{"baton.limit.near", Counter, "{decision}", "Decisions after which at least the share of the limit was used that its Warn names.", []Label{store, limit}, nil}
	limitDegraded    = Instrument{"baton.limit.degraded", Gauge, "{key}", "Keys, or whole limiters, about which this process decides alone because the store fails.", []Label{store, by}, nil}
	limitDuration    = Instrument{"baton.limit.duration", Histogram, "s", "How long a decision took, with the time that a Wait has waited.", []Label{store, operation}, waits}

	onceCalls    = Instrument{"baton.once.calls", Counter, "{call}", "Calls that ran their function or got a recorded result.", []Label{store, class, outcome}, nil}
	onceGaveUp   = Instrument{"baton.once.gave_up", Counter, "{call}", "Calls that ended without a result, whose function did not run.", []Label{store, class, errorType}, nil}
	onceRunning  = Instrument{"baton.once.running", Gauge, "{operation}", "Operations that run in this process.", []Label{store, class}, nil}
	onceDuration = Instrument{"baton.once.duration", Histogram, "s", "How long operations ran, with the time for recording the outcome.", []Label{store, class, outcome}, holds}

	electionElected = Instrument{"baton.election.elected", Counter, "{term}", "Elections that this process won.", []Label{store, class}, nil}
	electionLeading = Instrument{"baton.election.leading", Gauge, "{term}", "Whether this process leads: 1 or 0 for each candidate that it has.", []Label{store, class}, nil}
	electionTerm    = Instrument{"baton.election.term", Histogram, "s", "How long a leadership lasted.", []Label{store, class}, terms}
	electionLate    = Instrument{"baton.election.late", Counter, "{report}", "Reports that a leader goes on after its leadership has ended; one that does not stop is reported again and again.", []Label{store, class}, nil}
	electionFailed  = Instrument{"baton.election.failed", Counter, "{report}", "Reports that a candidate could not reach the store for about a TTL.", []Label{store, class, errorType}, nil}

	guardRefused = Instrument{"baton.guard.refused", Counter, "{write}", "Writes with a stale token that a guard refused.", []Label{store, class}, nil}

	storeRequest = Instrument{"db.client.operation.duration", Histogram, "s", "Duration of database client operations.", []Label{system, request, errorType}, requests}
)

var table = []Instrument{
	lockWait, lockHold, lockAcquired, lockFailed, lockLost, lockReleased, lockHeld, lockWaiting, lockOldest,
	renewalClaims, renewalFailed, renewalDuration, renewalSlack,
	limitDecisions, limitWouldRefuse, limitNear, limitDegraded, limitDuration,
	onceCalls, onceGaveUp, onceRunning, onceDuration,
	electionElected, electionLeading, electionTerm, electionLate, electionFailed,
	guardRefused,
	storeRequest,
}
