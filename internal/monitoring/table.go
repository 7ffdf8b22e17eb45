package monitoring

// sections are the dashboard, from above. It is read at night, after an alert: what is
// wrong now comes first.
//
// An expression names metrics without the job, the instance, the store and the class
// that a reader chooses: complete adds them.
var sections = []section{
	{"Wrong now", []panel{
		alarm("Locks lost in 10 min", "Others may have acquired them while the holder worked. Next: baton show KEY, baton doctor URL.", lately("baton_lock_lost_total")),
		alarm("Keys decided without the store", "Keys, or whole limiters, that a process decides about alone because the store fails. Next: baton doctor URL.", "sum(baton_limit_degraded) or vector(0)"),
		alarm("Stale writes refused in 10 min", "A guard refused a writer that had lost its lock. Next: baton show KEY.", lately("baton_guard_refused_total")),
		share("Renewals that fail", "Leases and positions that the store did not answer for, of those that were to be renewed. Next: baton doctor URL.",
			"sum(rate(baton_renewal_failed_total[5m])) / (sum(rate(baton_renewal_claims_total[5m])) > 0) or vector(0)"),
		{
			title: "Least slack", help: "One in a hundred renewals left a lease less time than this before it would have been lost. Next: baton doctor URL.",
			stat: true, unit: seconds, width: 3, height: 4, steps: []step{{"red", 0}, {"orange", 1}, {"green", 2}}, none: "no renewals",
			queries: []query{{"histogram_quantile(0.01, sum by (le) (rate(baton_renewal_slack_seconds_bucket[5m]))) >= 0", "slack"}},
		},
		alarm("Leaders late in 10 min", "Reports that a leader goes on after its leadership has ended. Next: baton show NAME.", lately("baton_election_late_total")),
		share("Store requests that fail", "Out of reach, or no answer. Next: baton doctor URL.",
			`sum(rate(db_client_operation_duration_seconds_count{error_type=~"unavailable|unknown"}[5m])) / (sum(rate(db_client_operation_duration_seconds_count[5m])) > 0) or vector(0)`),
		{
			title: "Processes", help: "Processes that show any of these metrics. If it is 0, or too low, green tells nothing: look at Prometheus' targets.",
			stat: true, unit: count, width: 3, height: 4, steps: []step{{"red", 0}, {"green", 1}},
			queries: []query{{"count(count by (job, instance) (baton_lock_held or baton_limit_decisions_total or baton_once_running or baton_election_leading)) or vector(0)", "processes"}},
		},

		over("Locks lost", "Each loss, for ten minutes.", count, 6, gained("baton_lock_lost_total", "job, store, class, cause"), "{{job}} {{store}} {{class}} {{cause}}"),
		over("Keys decided without the store", "open allows all, closed refuses all, local counts in each process.", count, 6, "sum by (job, store, by) (baton_limit_degraded)", "{{job}} {{store}} {{by}}"),
		over("Stale writes refused", "Each refusal, for ten minutes.", count, 6, gained("baton_guard_refused_total", "job, store, class"), "{{job}} {{store}} {{class}}"),
		over("Renewals that fail", "Leases and positions for which a store gave no answer.", perSecond, 6, "sum by (job, store) (rate(baton_renewal_failed_total[$__rate_interval]))", "{{job}} {{store}}"),
	}},
	{"Waiting and holding", []panel{
		over("Calls that wait", "Now. A candidate that stands by for an election waits, too.", count, 8, "sum by (store, class) (baton_lock_waiting)", "{{store}} {{class}}"),
		over("Oldest wait", "For how long the oldest of these calls has waited: it shows a lock that hangs. Next: baton ls, baton show KEY.", seconds, 8, "max by (store, class) (baton_lock_waiting_oldest_seconds)", "{{store}} {{class}}"),
		over("Wait, 99 of 100", "Calls took less than this, until they had the lock or failed. One that still waits is not in it.", seconds, 8, quantile("0.99", "baton_lock_wait_seconds", "store, class"), "{{store}} {{class}}"),
		over("Wait, median", "Half of the calls took less than this.", seconds, 8, quantile("0.5", "baton_lock_wait_seconds", "store, class"), "{{store}} {{class}}"),
		over("Locks held", "Now.", count, 8, "sum by (store, class) (baton_lock_held)", "{{store}} {{class}}"),
		over("Hold, 99 of 100", "Locks were held for less than this. A lock that is still held is not in it.", seconds, 8, quantile("0.99", "baton_lock_hold_seconds", "store, class"), "{{store}} {{class}}"),
		over("Hold, median", "Half of the locks were held for less than this.", seconds, 8, quantile("0.5", "baton_lock_hold_seconds", "store, class"), "{{store}} {{class}}"),
		over("Acquired", "", perSecond, 8, "sum by (store, class, mode) (rate(baton_lock_acquired_total[$__rate_interval]))", "{{store}} {{class}} {{mode}}"),
		over("Failed", "Calls that ended without a lock. held: others had it for too long, or a TryLock did not wait.", perSecond, 8, "sum by (store, class, error_type) (rate(baton_lock_failed_total[$__rate_interval]))", "{{store}} {{class}} {{error_type}}"),
		over("Released", "detached: for another process to take up. Any other error_type: the release may not have reached the store, and the lock ends with its TTL.", perSecond, 8, "sum by (store, class, error_type) (rate(baton_lock_released_total[$__rate_interval]))", "{{store}} {{class}} {{error_type}}"),
		over("Slack, 1 of 100", "One in a hundred renewals left a lease less time than this before it would have been lost.", seconds, 8, quantile("0.01", "baton_renewal_slack_seconds", "job, store"), "{{job}} {{store}}"),
		over("Renewals, 99 of 100", "Requests to renew took less than this.", seconds, 8, quantile("0.99", "baton_renewal_duration_seconds", "store, error_type"), "{{store}} {{error_type}}"),
		over("Renewed", "Leases and positions that a store was asked to renew.", perSecond, 8, "sum by (job, store) (rate(baton_renewal_claims_total[$__rate_interval]))", "{{job}} {{store}}"),
	}},
	{"Limits", []panel{
		over("Decisions", "", perSecond, 8, "sum by (limit, outcome) (rate(baton_limit_decisions_total[$__rate_interval]))", "{{limit}} {{outcome}}"),
		over("Share that is refused", "Of all decisions, errors included.", fraction, 8,
			`sum by (limit) (rate(baton_limit_decisions_total{outcome="refused"}[$__rate_interval])) / sum by (limit) (rate(baton_limit_decisions_total[$__rate_interval]))`, "{{limit}}"),
		over("Who decides", "store or batch; open, closed and local stand in for a store that fails.", perSecond, 8, "sum by (store, by) (rate(baton_limit_decisions_total[$__rate_interval]))", "{{store}} {{by}}"),
		over("Near the limit", "Decisions after which the share was used that Warn names.", perSecond, 8, "sum by (limit) (rate(baton_limit_near_total[$__rate_interval]))", "{{limit}}"),
		over("A Shadow would refuse", "Decisions that would be refused if the Shadow were a limit.", perSecond, 8, "sum by (limit) (rate(baton_limit_would_refuse_total[$__rate_interval]))", "{{limit}}"),
		over("Decision, 99 of 100", "Decisions took less than this; wait has the time that it waited.", seconds, 8, quantile("0.99", "baton_limit_duration_seconds", "store, operation"), "{{store}} {{operation}}"),
	}},
	{"Once", []panel{
		over("Calls", "unrecorded: the function ran, and the outcome could not be recorded; it may run again. superseded: another attempt had begun.", perSecond, 6, "sum by (class, outcome) (rate(baton_once_calls_total[$__rate_interval]))", "{{class}} {{outcome}}"),
		over("Calls that gave up", "held: TryDo found another attempt under way. canceled: the context ended first.", perSecond, 6, "sum by (class, error_type) (rate(baton_once_gave_up_total[$__rate_interval]))", "{{class}} {{error_type}}"),
		over("Running", "Now.", count, 6, "sum by (class) (baton_once_running)", "{{class}}"),
		over("Operation, 99 of 100", "Operations ran for less than this.", seconds, 6, quantile("0.99", "baton_once_duration_seconds", "class, outcome"), "{{class}} {{outcome}}"),
	}},
	{"Elections", []panel{
		over("Leading", "Now, and which process. Of each election one process should lead.", count, 8, "sum by (class, job, instance) (baton_election_leading)", "{{class}} {{job}} {{instance}}"),
		over("Elected", "Terms that began in the last hour. Many: leaders lose, or give up, what they lead.", count, 8, "sum by (class) (increase(baton_election_elected_total[1h]))", "{{class}}"),
		over("Term, median", "Half of the leaderships that ended had lasted for less than this.", seconds, 8, quantile("0.5", "baton_election_term_seconds", "class"), "{{class}}"),
		over("Leaders late", "Each report that a leader goes on after its leadership has ended, for ten minutes.", count, 12, gained("baton_election_late_total", "class, job, instance"), "{{class}} {{job}} {{instance}}"),
		over("Candidates without a store", "Reports that a candidate could not reach the store for about a TTL.", perSecond, 12, "sum by (class, error_type) (rate(baton_election_failed_total[$__rate_interval]))", "{{class}} {{error_type}}"),
	}},
	{"Stores", []panel{
		over("Requests", "", perSecond, 8, "sum by (db_system_name, db_operation_name) (rate(db_client_operation_duration_seconds_count[$__rate_interval]))", "{{db_system_name}} {{db_operation_name}}"),
		over("Requests that fail", "lost and canceled are no failures of the store.", perSecond, 8, `sum by (db_system_name, error_type) (rate(db_client_operation_duration_seconds_count{error_type!=""}[$__rate_interval]))`, "{{db_system_name}} {{error_type}}"),
		over("Request, 99 of 100", "Requests took less than this.", seconds, 8, quantile("0.99", "db_client_operation_duration_seconds", "db_system_name, db_operation_name"), "{{db_system_name}} {{db_operation_name}}"),
	}},
}

// alarm is a number that is green at 0 and else red.
func alarm(title, help, expr string) panel {
	return panel{
		title: title, help: help, stat: true, unit: count, width: 3, height: 4,
		steps: []step{{"green", 0}, {"red", 0.001}}, queries: []query{{expr, ""}},
	}
}

// share is a part of all that is green at 0, and red from where an alert fires.
func share(title, help, expr string) panel {
	p := alarm(title, help, expr)
	p.unit, p.steps = fraction, []step{{"green", 0}, {"orange", 0.001}, {"red", 0.05}}
	return p
}

// over is a curve over time for each legend.
func over(title, help, unit string, width int, expr, legend string) panel {
	return panel{title: title, help: help, unit: unit, width: width, height: 7, queries: []query{{expr, legend}}}
}

// gained is what a counter of single events gained in ten minutes. increase does not see
// a series begin, which a counter does at its first event.
func gained(counter, by string) string {
	return "sum by (" + by + ") ((increase(" + counter + "[10m]) > 0) or (" + counter + " unless " + counter + " offset 10m))"
}

// lately is gained, of all, or 0.
func lately(counter string) string {
	return "sum((increase(" + counter + "[10m]) > 0) or (" + counter + " unless " + counter + " offset 10m)) or vector(0)"
}

func quantile(q, histogram, by string) string {
	return "histogram_quantile(" + q + ", sum by (" + by + ", le) (rate(" + histogram + "_bucket[$__rate_interval])))"
}
