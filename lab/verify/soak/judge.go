package main

import (
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/batonhq/baton/lab/measure"
)

// A slack is how much a series may rise before that counts as growth: by by, or by the part part,
// whichever is more. It allows for noise, and for values that settle only after the warm-up.
type slack struct {
	by   float64
	part float64
}

// The series that are checked.
const (
	goroutines   = "goroutines"
	heap         = "heap"          // bytes in use after a collection
	files        = "files"         // open in the program, including connections
	connections  = "connections"   // of the program
	keys         = "keys"          // or rows, or nodes, of any kind
	serverMemory = "server memory" // bytes of all processes of the servers, shared memory counted once
	serverFiles  = "server files"  // open in the servers, including connections
)

// series lists them in the order in which they are shown.
var series = []string{goroutines, heap, files, connections, keys, serverMemory, serverFiles}

var slacks = map[string]slack{
	goroutines:   {8, 0.1},
	heap:         {512 << 10, 0.1},
	files:        {4, 0.1},
	connections:  {4, 0.1},
	keys:         {32, 0.15},
	serverMemory: {16 << 20, 0.25}, // it rises and falls with the rate
	serverFiles:  {8, 0.1},
}

// warmUp is the part of the load, from its beginning, that is not judged.
const warmUp = 0.4

// enough is the number of samples for a verdict.
const enough = 9

// A span describes a series after the warm-up.
type span struct {
	First float64 `json:"first"` // median of the first third
	Last  float64 `json:"last"`  // median of the last third
	Most  float64 `json:"most"`
	// Pace is the work of the last third divided by that of the first.
	Pace float64 `json:"pace"`
	// Unjudged is the reason why the series is only shown.
	Unjudged string `json:"unjudged,omitempty"`
}

// spanOf splits the samples after the warm-up into thirds. ops has the operations until each sample.
func spanOf(values, ops []float64) span {
	begin := int(float64(len(values)) * warmUp)
	values, ops = values[begin:], ops[begin:]
	n := len(values)
	if n < enough {
		return span{Unjudged: "there are too few samples"}
	}
	third := n / 3
	s := span{First: measure.Median(values[:third]), Last: measure.Median(values[n-third:]), Most: slices.Max(values), Pace: 1}
	if before := ops[third-1] - ops[0]; before > 0 {
		s.Pace = (ops[n-1] - ops[n-third]) / before
	}
	return s
}

// grew reports whether the series ends higher than noise explains. One outlier moves no median, and a
// series that goes up and down has the same median in each third, if its period is shorter than a third.
// The number of keys that will still expire may rise with the pace: the load makes more of them on a
// faster store, or a less busy machine.
func (s span) grew(name string) bool {
	k, first := slacks[name], s.First
	if name == keys {
		first *= math.Max(1, s.Pace)
	}
	return s.Unjudged == "" && s.Last > first+math.Max(k.by, k.part*first)
}

// keptFor is how long an unused key may stay.
func keptFor(kind string) time.Duration {
	switch kind {
	case "postgres", "mariadb":
		return 11 * time.Minute // rows of locks are swept ten minutes after their last use
	case "zookeeper3":
		return 330 * time.Second // records that have expired stay for five minutes
	case "sqlite":
		return 90 * time.Second // keys stay for a minute
	}
	return 20 * time.Second
}

// fewKeys is how many more keys than before the load may stay after the load and its leases: those of
// the last callers.
const fewKeys = 64

// folders is how many nodes records leave in ZooKeeper for good: the folder of a record is one of 4096.
// The load has that many names for records, and reuses each before its nodes are gone.
const folders = 256

func allowed(kind string) float64 {
	switch kind {
	case "zookeeper3":
		return fewKeys + 2*folders
	case "cluster":
		return fewKeys + slots
	}
	return fewKeys
}

// judge decides what leaked, and what was lost.
func (r *result) judge() {
	r.Why = nil
	for _, name := range series {
		s, seen := r.Series[name]
		if !seen {
			continue
		}
		switch {
		case s.Unjudged != "":
		case name == serverMemory && r.Kind == "zookeeper3":
			s.Unjudged = "Java takes memory up to its limit"
		case name == keys && time.Duration(float64(r.For)*warmUp) < keptFor(r.Kind):
			s.Unjudged = fmt.Sprintf("what is not used stays for up to %v", keptFor(r.Kind))
		case s.grew(name):
			r.Why = append(r.Why, fmt.Sprintf("%s grew from %s to %s", name, show(name, s.First), show(name, s.Last)))
		}
		r.Series[name] = s
	}
	if most := r.Before.Keys + allowed(r.Kind); r.Calm.Keys > most && r.Drained >= keptFor(r.Kind) {
		r.Why = append(r.Why, fmt.Sprintf("%.0f keys were left %v after the load, and %.0f were there before", r.Calm.Keys, r.Drained.Round(time.Second), r.Before.Keys))
	}
	for _, x := range []struct {
		name          string
		before, after float64
	}{
		{goroutines, r.Before.Goroutines, r.Closed.Goroutines},
		{files, r.Before.Files, r.Closed.Files},
		{connections, r.Before.Connections, r.Closed.Connections},
	} {
		if x.after > x.before {
			r.Why = append(r.Why, fmt.Sprintf("%s: %.0f after all stores were closed, %.0f before they were opened", x.name, x.after, x.before))
		}
	}
	r.Verdict = Flat
	if len(r.Why) > 0 {
		r.Verdict = Grew
	}
	if lost := r.Closed.Lost; lost > 0 {
		r.Verdict = Lost
		r.Why = append(r.Why, fmt.Sprintf("%d times a lease was lost, or a lock held twice, and nothing was made to fail", lost))
	}
}

// show formats a value for people.
func show(name string, v float64) string {
	if name == heap || name == serverMemory {
		return fmt.Sprintf("%.1f MB", v/1e6)
	}
	return fmt.Sprintf("%.0f", v)
}
