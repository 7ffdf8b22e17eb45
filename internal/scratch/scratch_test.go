package scratch

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

// keysOf lists what is held or waited for.
func keysOf(t *testing.T, s driver.Inspector) (keys []string) {
	t.Helper()
	for info, err := range s.List(context.Background(), "") {
		if err != nil {
			t.Fatal(err)
		}
		keys = append(keys, info.Key)
	}
	return keys
}

func TestMeasure(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	p, err := Measure(t.Context(), s, 10)
	if err != nil || p.N != 10 || p.P50 > p.Slowest {
		t.Errorf("%+v, error %v", p, err)
	}
	if left := keysOf(t, s); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

// lossy loses the answers to Acquire from the third on.
type lossy struct {
	*memstore.Store
	n atomic.Int32
}

func (l *lossy) Acquire(ctx context.Context, r driver.Request) (driver.Grant, error) {
	g, err := l.Store.Acquire(ctx, r)
	if err == nil && l.n.Add(1) > 2 {
		return driver.Grant{}, driver.ErrUnknown
	}
	return g, err
}

func TestKeyIsCleanedUpAfterAnError(t *testing.T) {
	t.Parallel()
	s := &lossy{Store: memstore.New()}
	p, err := Measure(t.Context(), s, 10)
	if !errors.Is(err, driver.ErrUnknown) || p.N != 1 {
		t.Errorf("%+v, error %v", p, err)
	}
	if left := keysOf(t, s.Store); len(left) != 0 {
		t.Errorf("left %q", left)
	}
}

func TestMeasureEnds(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	if _, err := Measure(ctx, memstore.New(), 1<<40); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("error %v", err)
	}
}
