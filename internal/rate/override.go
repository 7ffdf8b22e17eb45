package rate

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// Override is a limits.Override as stores keep it.
type Override struct {
	N, Period, Burst int64 // Period in µs
	Until            int64 // when it ends, in µs since 1970
}

// NewOverride is what is kept of o for keep from now.
func NewOverride(o limits.Override, now int64, keep time.Duration) Override {
	return Override{N: o.N, Period: o.Period.Microseconds(), Burst: o.Burst, Until: now + (keep + time.Microsecond - 1).Microseconds()}
}

// At is the override of key as it is at now. It is false if the override has ended.
func (o Override) At(key string, now int64) (limits.Override, bool) {
	return limits.Override{
		Key: key, N: o.N, Period: time.Duration(o.Period) * time.Microsecond, Burst: o.Burst,
		Left: time.Duration(o.Until-now) * time.Microsecond,
	}, o.Until > now
}

// Text is what a store of texts keeps: N, Period, Burst and Until.
func (o Override) Text() string {
	var b []byte
	for _, n := range []int64{o.N, o.Period, o.Burst, o.Until} {
		b = append(strconv.AppendInt(b, n, 10), ' ')
	}
	return string(b[:len(b)-1])
}

// ParseOverride is the reverse of Text. It is false for any other text.
func ParseOverride(text string) (o Override, ok bool) {
	numbers := strings.Split(text, " ")
	into := []*int64{&o.N, &o.Period, &o.Burst, &o.Until}
	if len(numbers) != len(into) {
		return Override{}, false
	}
	for i, n := range into {
		var err error
		if *n, err = strconv.ParseInt(numbers[i], 10, 64); err != nil || *n < 0 {
			return Override{}, false
		}
	}
	return o, o.N < exact && o.Burst < exact && o.Until <= latest && o.Period <= int64(math.MaxInt64/time.Microsecond)
}
