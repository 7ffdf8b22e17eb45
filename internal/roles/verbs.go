package roles

// What a caller may do with the keys below a prefix.
const (
	Lock     = "lock"     // acquire and hold locks of every kind, and stand in elections
	List     = "list"     // see who holds and wants what
	Break    = "break"    // end the claims of others, and ask others to release
	Limit    = "limit"    // ask limits
	GiveBack = "giveback" // beside Limit: return to limits what any caller has taken
	Once     = "once"     // run operations
)

var verbs = []string{Lock, List, Break, Limit, GiveBack, Once}
