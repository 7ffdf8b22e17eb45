// Package batontest is for the tests of programs that use Baton. Its Store keeps locks,
// records and limits in memory, and does on demand what a real store does seldom: the
// lock is held by another process, the lease is lost while the work runs, the store is
// out of reach, its answer is lost, the limit has nothing left.
//
//	s := batontest.New(t)
//	locks, err := baton.New(s, baton.Config{})
//	…
//	s.Hold("invoice/42", "another server")
//	if err := pay(t.Context(), locks, 42); !errors.Is(err, baton.ErrHeld) {
//		t.Error(err)
//	}
//
// A Store belongs to one test and fails it if, at its end, the program holds a lock that
// it never unlocked, or never sent a request that a fault was planted for.
//
// # Time
//
// A Store works within a testing/synctest bubble, where a test that waits for a TTL takes
// no time, and outside of one. Call New inside of the bubble. Hold, Lose, Fail, FailNext,
// LoseReply and Exhaust need no bubble: what they cause comes at once. What Baton does
// about it may take time: Lock asks a store that is out of reach again for about
// Config.TTL, and at least 5s, TryLock does not.
//
// # What the tests of a program should see
//
// The page docs/testing.md of the repository has one test for each of these moments,
// and says what only real servers can show.
package batontest
