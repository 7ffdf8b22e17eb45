package roles

// Verbs: what a caller may do with the keys below a prefix.
const (
	Lock     = "lock"     // acquire and hold locks of every kind, stand in elections
	List     = "list"     // see the holders and waiters
	Break    = "break"    // revoke locks, and ask holders to release them
	Limit    = "limit"    // take from limits
	GiveBack = "giveback" // also return to limits what any caller has taken; needs Limit, too
	Once     = "once"     // run operations
)

var verbs = []string{Lock, List, Break, Limit, GiveBack, Once}
