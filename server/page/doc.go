// Package page shows people what a store has, in a browser: locks with their holders and
// queues, rate limits, operations of once, and what happened in this process. It also lets
// them revoke a lock, and ask its holders to release it.
//
//	recent := page.NewRecent()
//	locks, err := baton.New(store, baton.Config{Events: recent.Events().Locks})
//	p, err := page.New(page.Config{Locks: locks, Recent: recent, Hosts: page.Loopback})
//	defer p.Close()
//	http.Serve(listener, p)
//
// # What is promised
//
// The page loads nothing from another server, and nothing that a store says becomes
// markup: the browser enforces both by the Content-Security-Policy. Characters that cannot
// be seen, or change the direction of writing, are shown escaped.
//
// The store is read only while a page is open, once for all who look. Lists are read for
// at most a tenth of the time, so a list that takes long is read seldom; the page says how
// old it is. Beside that the rows on a screen, at most 50, are inspected about once a
// second, and a lock of which an event of this process tells at once. So what a screen
// shows of a lock is about a second old at most, if inspecting 50 locks takes the store
// less than that. A lock that another process takes appears when the list is read next.
//
// # What is not
//
// A list is no snapshot. Of a list with more than 50,000 rows the page shows those that
// the store lists first. Events are those of this process since it began, the last 200 of
// the usual and the last 100 of the others.
//
// The page knows no passwords. Config.Caller decides who may see and do what; without it
// every process that can connect may do all.
package page
