// Package page shows people the content of a store in a browser: locks with their holders
// and queues, rate limits, operations of once, and events of this process. People can also
// revoke a lock, and ask its holders to release it.
//
//	recent := page.NewRecent()
//	locks, err := baton.New(store, baton.Config{Events: recent.Events().Locks})
//	p, err := page.New(page.Config{Locks: locks, Recent: recent, Hosts: page.Loopback})
//	defer p.Close()
//	http.Serve(listener, p)
//
// # What is promised
//
// The page loads nothing from another server, and no text of a store becomes markup: the
// browser enforces both by the Content-Security-Policy. Characters that are invisible or
// change the direction of writing are shown escaped.
//
// The store is read only while a page is open, once for all viewers. Lists are read for at
// most a tenth of the time, so a slow list is read seldom; the page shows its age. In
// addition the rows on a screen, at most 50, are inspected about once a second, and a lock
// with an event in this process at once. So a lock on a screen is shown as it was about a
// second ago, if the store inspects all locks on screens in less than half a second. A
// lock that another process takes appears when the list is read next.
//
// # What is not
//
// A list is no snapshot. Of more than 50,000 rows the page shows those that the store
// lists first. Events are those of this process since it began: the last 200 usual ones,
// and the last 100 of trouble.
//
// The page has no passwords. Config.Caller decides which callers may see and do what.
// Without it every process that can connect may do everything.
package page
