package metrics

import (
	"errors"
	"fmt"
	"strings"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver/observe"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
)

// Config is the settings of New. The zero Config is ready to use.
type Config struct {
	// Class returns the class of a key, for the label baton.class: "order" for
	// "order/4711". By default it is the part before the first slash, and "none" without
	// a slash. Locks, operations, elections and guards each use the first 50 values of
	// Class, and "other" for the rest. A client that chooses the keys can use these up,
	// so that the program's own classes become "other": if strangers choose the part
	// before the slash, return names of your own. Class is called for each event, by
	// several goroutines at a time, on the goroutine that locks: it must not panic.
	Class func(key string) string
}

// Events count the events of all packages of Baton. Pass each to the constructor of its
// package, Guard to guard.Observe. One Events serves any number of Lockers, Limiters,
// Runners, Candidates and stores of a process.
type Events struct {
	Locks     *baton.Events
	Limits    *ratelimit.Events
	Once      *once.Events
	Elections *election.Events
	Guard     guard.Events
	Store     observe.Events
}

// MaxClasses is the number of values, besides "other", of a label that a program chooses.
const MaxClasses = 50

// New makes all instruments by the Meter and returns the Events that feed them. It makes
// a series at its first value.
func New(m Meter, cfg Config) (Events, error) {
	if cfg.Class == nil {
		cfg.Class = beforeSlash
	}
	vectors := make(map[string]Vector, len(table))
	waits := newOldest()
	var errs []error
	for _, i := range table {
		var v Vector
		var err error
		if i.Kind == Sampled { // the only one
			err = m.Sample(i, waits.look)
		} else {
			v, err = m.Make(i)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("metrics: %s: %w", i.Name, err))
		}
		vectors[i.Name] = v
	}
	if err := errors.Join(errs...); err != nil {
		return Events{}, err
	}
	of := func(i Instrument) Vector { return vectors[i.Name] }
	return Events{
		Locks:     lockEvents(of, cfg.Class, waits),
		Limits:    limitEvents(of),
		Once:      onceEvents(of, cfg.Class),
		Elections: electionEvents(of, cfg.Class),
		Guard:     guardEvents(of, cfg.Class),
		Store:     storeEvents(of),
	}, nil
}

func beforeSlash(key string) string {
	if i := strings.IndexByte(key, '/'); i > 0 {
		return key[:i]
	}
	return none
}

const (
	none  = "none"
	other = "other"
)

// causes are words for the end of a lease.
var causes = map[baton.Cause]string{
	baton.Expired: "expired", baton.Gone: "gone", baton.Overheld: "overheld", baton.Detached: "detached", baton.Released: "released",
}

// ErrorClass is the label error.type of an error of any package, "" for nil: for a
// *baton.LostError the cause of the loss, for others observe.Class.
func ErrorClass(err error) string {
	if err == nil {
		return ""
	}
	if lost, ok := errors.AsType[*baton.LostError](err); ok {
		return causes[lost.Cause]
	}
	if errors.Is(err, baton.ErrLost) {
		return observe.Lost
	}
	return observe.Class(err)
}
