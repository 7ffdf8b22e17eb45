//go:build unix

package main

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/scratch"
	"github.com/batonhq/baton/store/memstore"
)

func TestDoctorWords(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		offset, within time.Duration
		want           string
	}{
		{0, time.Millisecond, "agrees with this machine's"},
		{-time.Millisecond, time.Millisecond, "agrees with this machine's"},
		{1234567 * time.Microsecond, time.Millisecond, "is 1.23s ahead of this machine's"},
		{-time.Hour, time.Millisecond, "is 1h0m0s behind this machine's"},
	} {
		if got := offsetWords(c.offset, c.within); got != c.want {
			t.Errorf("%v: %q, want %q", c.offset, got, c.want)
		}
	}
	for d, want := range map[time.Duration]string{0: "0s", 999: "999ns", 123456: "123µs", 1234567890: "1.23s"} {
		if got := exact(d); got != want {
			t.Errorf("exact(%d) = %q, want %q", d, got, want)
		}
	}
}

func TestDoctorJudgesWhatItMeasured(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		pairs scratch.Pairs
		err   error
		want  string
	}{
		{scratch.Pairs{N: 20, P50: time.Millisecond}, nil, ""},
		{scratch.Pairs{N: 20, P50: 80 * time.Millisecond}, nil, "slow-pair"},
		{scratch.Pairs{}, driver.ErrUnavailable, "no-lock"},
		{scratch.Pairs{N: 3, P50: time.Second}, context.DeadlineExceeded, "slow-pair"},
	} {
		d := new(diagnosis)
		d.judgePairs(c.pairs, c.err)
		got := ""
		for _, f := range d.findings {
			got += f.Name
		}
		if got != c.want {
			t.Errorf("%+v, %v: found %q, want %q", c.pairs, c.err, got, c.want)
		}
	}
}

// skewed is a store whose clock is an hour ahead.
type skewed struct {
	driver.Store
	err error
}

func (s skewed) ServerTime(context.Context) (time.Time, error) {
	return time.Now().Add(time.Hour), s.err
}

func TestDoctorComparesClocks(t *testing.T) {
	t.Parallel()
	d := new(diagnosis)
	d.compareClocks(t.Context(), skewed{memstore.New(), nil})
	if d.offset == nil || (*d.offset-time.Hour).Abs() > d.within+time.Millisecond {
		t.Errorf("offset %v, within %v", d.offset, d.within)
	}
	d = new(diagnosis)
	d.compareClocks(t.Context(), skewed{memstore.New(), driver.ErrUnavailable})
	if d.offset != nil || !errors.Is(d.partial, driver.ErrUnavailable) {
		t.Errorf("no answer: offset %v, %v", d.offset, d.partial)
	}
	d = new(diagnosis)
	d.compareClocks(t.Context(), memstore.New())
	if d.offset != nil || d.partial != nil {
		t.Errorf("no clock: offset %v, %v", d.offset, d.partial)
	}
}
