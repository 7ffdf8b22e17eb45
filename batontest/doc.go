// Package batontest is for the tests of programs that use Baton. Its Store keeps locks,
// records and limits in memory, and on demand does what real stores seldom do: another
// process holds the lock, the lease is lost during the work, the store is out of reach,
// its answer is lost, the limit is used up.
//
//	s := batontest.New(t)
//	locks, err := baton.New(s, baton.Config{})
//	…
//	s.Hold("invoice/42", "another server")
//	if err := pay(t.Context(), locks, 42); !errors.Is(err, baton.ErrHeld) {
//		t.Error(err)
//	}
//
// A Store belongs to one test. At the end it fails the test if the program still holds a
// lock, or never sent a request that a planted fault was for.
//
// # Time
//
// A Store works inside a testing/synctest bubble, where a test that waits for a TTL takes
// no time, and outside. Call New inside the bubble. Hold, Lose, Fail, FailNext, LoseReply
// and Exhaust need no bubble: their effects are immediate. Baton's reaction may take
// time: Lock asks a store that is out of reach again for about Config.TTL, and at least
// 5s, TryLock does not.
//
// # What the tests of a program should see
//
// The page docs/testing.md of the repository has one test for each of these moments, and
// says what only real servers can show.
package batontest
