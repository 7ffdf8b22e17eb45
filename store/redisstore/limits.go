package redisstore

import (
	"context"
	"fmt"
	"hash/maphash"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/rate"
)

// exact is the end of the integers that scripts can reckon with, and latest the
// latest moment that they are asked about, in 2096.
const (
	exact  = 1 << 53
	latest = 4e15
)

// Take implements driver.Limits: one script, by the clock of the server. In
// Cluster, limits of one request must lie on one slot, which a common {tag} in
// their keys does; otherwise it is a *driver.LimitError.
//
// FLUSHALL makes all limits fresh, and a fail-over those of which the new primary
// has not heard. What the server keeps under the name of a limit and is no
// string is a *driver.LimitError, too.
func (s *Store) Take(ctx context.Context, r driver.TakeRequest) (driver.Taken, error) {
	keys, args, err := s.limitCall(&r)
	if err != nil {
		return driver.Taken{}, err
	}
	answer, err := s.run(ctx, limitScript, keys, args)
	if err != nil {
		return driver.Taken{}, err
	}
	return s.taken(&r, answer)
}

// limitCall checks a request and makes what its script is told.
func (s *Store) limitCall(r *driver.TakeRequest) (keys, args []string, err error) {
	if err := driver.CheckTake(*r); err != nil {
		return nil, nil, err
	}
	first := r.Takes[0].Key
	if r.Now > latest {
		return nil, nil, &driver.LimitError{Key: first, Reason: "Redis cannot reckon with a time after 2096"}
	}
	simple := len(r.Takes) == 1 && r.Mode == driver.TakeIfAllowed && r.MaxWait == 0 && r.Now == 0 && r.ID == ""
	keys = make([]string, 0, len(r.Takes)+1)
	args = make([]string, 0, len(r.Takes)+1)
	if !simple {
		args = append(args, limitHeader(r))
	}
	var home lockNames
	for i, t := range r.Takes {
		numbers, err := s.limits.numbers(t.Limit)
		if err != nil {
			return nil, nil, err
		}
		n := s.names.beside(t.Key)
		if i == 0 {
			home = n
		} else if s.names.cluster && !s.names.fixed && slot(n.lock) != slot(home.lock) {
			return nil, nil, &driver.LimitError{Key: first, Reason: fmt.Sprintf(
				"in Redis Cluster it lies on another slot than %q, which the same request asks for: give both keys a common tag in braces, as in {user1}.requests and {user1}.bytes", t.Key)}
		}
		keys = append(keys, n.limit())
		var b [256]byte
		a := append(strconv.AppendInt(b[:0], min(t.Cost, exact-1), 10), numbers...)
		args = append(args, string(a))
	}
	if r.ID != "" {
		keys = append(keys, home.id(r.ID))
	}
	return keys, args, nil
}

// limitHeader is what a script is told of a request that is not simple.
func limitHeader(r *driver.TakeRequest) string {
	b := make([]byte, 0, 64)
	b = append(b, 'r')
	keep := int64(0)
	if r.ID != "" {
		keep = ceilMillis(r.Keep)
	}
	for _, n := range []int64{
		int64(len(r.Takes)), int64(r.Mode), r.MaxWait.Microseconds(), r.At, r.Wait.Microseconds(), r.Now, keep,
	} {
		b = append(b, ' ')
		b = strconv.AppendInt(b, min(n, exact-1), 10)
	}
	return string(b)
}

func ceilMillis(d time.Duration) int64 { return int64((d + time.Millisecond - 1) / time.Millisecond) }

// taken reads the answer of the script limit to one request.
func (s *Store) taken(r *driver.TakeRequest, answer any) (driver.Taken, error) {
	a := list(answer)
	switch n := 4 * len(r.Takes); len(a) {
	case n + 1:
		return decided(a), nil
	case n + 2:
		d := decided(a[:n+1])
		d.Repeated, d.Wait = true, micros(a[n+1])
		for i := range d.Limits {
			d.Limits[i].Wait = d.Wait
		}
		return d, nil
	case 1:
		if ahead, outside := (&rate.Request{TakeRequest: *r}).Outside(number(a[0])); outside {
			return driver.Taken{}, &driver.ClockError{Store: traits.Store, Ahead: ahead}
		}
	case 2:
		if i := int(number(a[0])); i > 0 && i <= len(r.Takes) {
			return driver.Taken{}, &driver.LimitError{Key: r.Takes[i-1].Key, Reason: fmt.Sprintf(
				"redis has a %s under the name %q: remove it, or choose another key", text(a[1]), s.names.beside(r.Takes[i-1].Key).limit())}
		} else if i > 0 { // an ID is not shown
			return driver.Taken{}, &driver.LimitError{Key: r.Takes[0].Key, Reason: fmt.Sprintf(
				"redis has a %s under the name of the request's ID, which begins with %q: remove it", text(a[1]), s.names.own+"d:")}
		}
	}
	return driver.Taken{}, strange(limitScript, answer)
}

// decided reads what is said of each limit.
func decided(a []any) driver.Taken {
	d := driver.Taken{OK: true, At: number(a[0]), Limits: make([]driver.Decision, len(a)/4)}
	for i := range d.Limits {
		x, b := &d.Limits[i], a[4*i+1:]
		switch us := number(b[0]); {
		case us >= 0:
			x.OK, x.Wait = true, time.Duration(us)*time.Microsecond
		case us == -exact:
			x.Retry = driver.Never
		default:
			x.Retry = time.Duration(-1-us) * time.Microsecond
		}
		x.Remaining, x.Next, x.Reset = number(b[1]), micros(b[2]), micros(b[3])
		d.OK = d.OK && x.OK
		d.Wait, d.Retry = max(d.Wait, x.Wait), max(d.Retry, x.Retry)
	}
	if !d.OK {
		d.Wait = 0
	}
	return d
}

func micros(v any) time.Duration { return time.Duration(number(v)) * time.Microsecond }

// knownLimits remembers what scripts are told of limits, so that a limit that
// is asked again and again is checked once. Limits that fall on the same place
// take turns.
type knownLimits struct {
	places [1024]atomic.Pointer[knownLimit]
}

type knownLimit struct {
	limit   driver.Limit
	numbers string // each after a space
}

var limitSeed = maphash.MakeSeed()

func (k *knownLimits) numbers(l driver.Limit) (string, error) {
	place := &k.places[maphash.Comparable(limitSeed, l)%uint64(len(k.places))]
	if known := place.Load(); known != nil && known.limit == l {
		return known.numbers, nil
	}
	a, err := rate.Of(l)
	if err != nil {
		return "", err
	}
	var b []byte
	for _, n := range a.Numbers() {
		b = append(b, ' ')
		b = strconv.AppendInt(b, n, 10)
	}
	place.Store(&knownLimit{l, string(b)})
	return string(b), nil
}
