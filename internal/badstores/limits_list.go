package badstores

import (
	"context"
	"iter"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/rate"
)

// The bugs of lists of limits, by what they do.
const (
	ListsWhatRemains     Bug = "lists what remains for what is used"
	ListsOneKind         Bug = "lists only one of the kinds that have taken"
	ListsIDs             Bug = "lists IDs as keys"
	ListConsumes         Bug = "a list consumes"
	ListsFromTheBegin    Bug = "begins a list again at the begin"
	ListsInNoOrder       Bug = "lists limits in no order"
	ListsLimitsByPattern Bug = "takes the prefix of a list of limits for a pattern"
	SkipsLimits          Bug = "skips a limit between two pages"
	FailsWhereOneWent    Bug = "ends a list where a limit has gone"
	ListsWhatCameBack    Bug = "lists what has come back"
	ListsLimitsAfterEnd  Bug = "lists limits although the caller has gone"
)

// ListStates implements limits.Lister, but for the bug.
func (s *Limits) ListStates(ctx context.Context, prefix, after string) iter.Seq2[limits.State, error] {
	return func(yield func(limits.State, error) bool) {
		if err := ctx.Err(); err != nil && s.bug != ListsLimitsAfterEnd {
			yield(limits.State{}, err)
			return
		}
		if s.bug == ListsFromTheBegin {
			after = ""
		}
		keys := s.matching(prefix, after)
		const page = 100
		for i, key := range keys {
			s.mu.Lock()
			st, there := s.states[key]
			d, ok := s.describe(key, st)
			s.mu.Unlock()
			switch {
			case s.bug == SkipsLimits && i%page == page-1:
			case s.bug == FailsWhereOneWent && !there:
				yield(limits.State{}, driver.ErrUnavailable)
				return
			case s.bug == ListsIDs && !there:
				d, ok = limits.State{Key: key, Kind: limits.Window, Used: 1, Reset: time.Hour}, true
				fallthrough
			default:
				if ok && !yield(d, nil) {
					return
				}
			}
		}
	}
}

func (s *Limits) matching(prefix, after string) (keys []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	names := slices.Collect(maps.Keys(s.states))
	if s.bug == ListsIDs {
		names = slices.AppendSeq(names, maps.Keys(s.ids))
	}
	for _, key := range names {
		matches := strings.HasPrefix(key, prefix)
		if s.bug == ListsLimitsByPattern && !matches {
			matches, _ = path.Match(prefix+"*", strings.ReplaceAll(key, "/", ":"))
		}
		if matches && key > after {
			keys = append(keys, key)
		}
	}
	slices.Sort(keys)
	if s.bug == ListsInNoOrder {
		slices.Reverse(keys)
	}
	return keys
}

func (s *Limits) describe(key string, st limitState) (d limits.State, ok bool) {
	if len(st.state) == 0 {
		return d, false
	}
	now := time.Now().UnixMicro()
	d, ok = rate.Describe(key, st.state, now, 0)
	switch {
	case s.bug == ListsWhatRemains && ok:
		d.Used = max(st.limit.Capacity()-d.Used, 1)
	case s.bug == ListsOneKind && d.Kind == limits.Several:
		d, ok = rate.Describe(key, st.state[2:2+st.state[1]], now, 0)
	case s.bug == ListsWhatCameBack && !ok:
		d, ok = limits.State{Key: key, Kind: limits.Window, Used: 1, Reset: 1}, true
	case s.bug == ListConsumes:
		if a, err := rate.Of(st.limit); err == nil && a.Owns(st.state) {
			st.state = a.Take(st.state, now, 1)
			s.states[key] = st
		}
	}
	return d, ok
}
