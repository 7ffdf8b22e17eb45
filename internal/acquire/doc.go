// Package acquire is the state machine behind a lock: one acquisition, from its first
// request to its end. Machine is pure: it has no mutex and no clock, and calls no store.
// The keeper of package baton passes events to it and performs the effects that it
// returns. The documentation of package baton has a picture of the states.
package acquire
