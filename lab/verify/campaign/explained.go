package main

// The reasons why a promise that may break was not seen to break.
const (
	nobodyDies = "Only the locks of those who crashed before the jump stay for longer, and no process crashes under this fault. " +
		"With f02 beside it waiters were seen to wait for too long (`baton-lab verify --local redis --fault f02+f16`)."
	clocked = "A token is at least what the server's clock gives, so that it falls only if the clock does, or if more " +
		"were given since the snapshot than microseconds have passed."
	promotion = "What breaks it is a promotion that loses a grant. Probably the servers were back before one was due, " +
		"which is longer than they stop here."
	empty = "What breaks it is a server that comes back empty while a holder still believes. Probably it took longer " +
		"than that until the others let it serve again."
)

// explained has the reasons for cells whose results differ from their claims.
var explained = because(map[string][]string{
	nobodyDies: {"redis f16", "redis-nopersist f16", "sentinel f16", "cluster f16", "mariadb f16", "postgres f16"},
	clocked:    {"redis f25", "mariadb f25", "postgres f25", "sqlite f25"},
	promotion:  {"sentinel f11", "cluster f11"},
	empty:      {"cluster f10"},
})

// because maps each cell to its reason.
func because(reasons map[string][]string) map[string]string {
	cells := make(map[string]string)
	for why, places := range reasons {
		for _, place := range places {
			cells[place] = why
		}
	}
	return cells
}
