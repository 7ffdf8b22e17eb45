package verify

import "time"

// orders are a client's orders at its start. They have a URL with its secrets, so a client
// gets them only by its standard input.
type orders struct {
	URL        string        `json:"url"`
	Client     int           `json:"client"`
	Seed       uint64        `json:"seed"`
	Goroutines int           `json:"goroutines"`
	TTL        time.Duration `json:"ttl"`
	Prefix     string        `json:"prefix"`  // of all keys
	Keys       int           `json:"keys"`    // of locks
	Permits    []int64       `json:"permits"` // the capacity of each key with permits
	Brief      bool          `json:"brief,omitempty"`
	Log        string        `json:"log"` // the file of its history
	Register   string        `json:"register"`
	Defect     string        `json:"defect,omitempty"` // planted by tests

	// Own is for a client that uses its own connection, if the kind of store supports that.
	// With GoRedis that is a connection of that library.
	Own     bool `json:"own,omitempty"`
	GoRedis bool `json:"goRedis,omitempty"`

	*reach
}

// reach is for a client that does not use the store directly. It has no goroutines for limits,
// and bounds each wait, so it needs no order to give up.
type reach struct {
	Way       string        `json:"way"`
	Socket    string        `json:"socket,omitempty"`   // of the agent
	Replicas  []string      `json:"replicas,omitempty"` // addresses of the servers
	First     int           `json:"first"`              // the replica to ask first
	Wait      time.Duration `json:"wait"`               // bounds one attempt
	Ahead     int64         `json:"ahead"`              // history.Ahead
	Shared    bool          `json:"shared,omitempty"`   // whether the store has it
	Permitted bool          `json:"permitted,omitempty"`
}

// An order is a message to a working client.
type order struct {
	Do  do            `json:"do"`
	For time.Duration `json:"for,omitempty"`
}

type do string

const (
	doBegin   do = "begin"         // work
	doStop    do = "stop-at-write" // stop at the next write
	doNotStop do = "do-not-stop"   // forget stop-at-write
	doSuspend do = "suspend"       // make the clock jump
	doCalm    do = "calm"          // from now on hold briefly
	doDrain   do = "drain"         // begin no new operation
	doGiveUp  do = "give-up"       // wait no longer
	doCount   do = "count"         // count the permits of each key with permits
	doWeigh   do = "weigh"         // measure what keys leave in the memory of the process
	doClose   do = "close"         // close the store
)

// A word is a message of a client.
type word struct {
	Say  say    `json:"say"`
	Text string `json:"text,omitempty"`
}

type say string

const (
	sayReady    say = "ready"    // the store is open
	sayFailed   say = "failed"   // the store is not open, or the client cannot work
	sayHolds    say = "holds"    // it holds at least one lock
	sayFree     say = "free"     // it holds none any more
	sayStops    say = "stops"    // right before it stops itself
	sayGoesOn   say = "goes-on"  // it will not stop
	sayCalm     say = "calm"     // all operations from before the calm have ended
	sayDraining say = "draining" // no new operation begins
	sayDrained  say = "drained"  // all operations have ended
	sayTold     say = "told"     // the counts of the Locker's events, as JSON
	sayEvents   say = "events"   // the events contradict each other
	sayCounted  say = "counted"
	sayGrows    say = "memory" // keys stay in memory
	sayWeighed  say = "weighed"
	sayRunning  say = "goroutines"  // some are left
	sayOpen     say = "descriptors" // some are left
	sayClosed   say = "closed"
)

func lockKey(prefix string, n int) string     { return prefix + "lock/" + itoa(n) }
func ownKey(prefix string, client int) string { return prefix + "own/" + itoa(client) }
func permitKey(prefix string, n int) string   { return prefix + "permits/" + itoa(n) }
func batchKey(prefix, n string) string        { return prefix + "batch/" + n }
func limitKey(prefix string, n int) string    { return prefix + "limit/" + itoa(n) }
