// Package acquire is the state machine behind a lock: a process's way through one key, from
// the first request to the end. Machine is pure: it has no mutex and no clock, and calls no
// store. The keeper of package baton tells it what happened and performs the effects that it
// returns. The states are drawn in the documentation of package baton.
package acquire
