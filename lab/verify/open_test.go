package verify

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/batonhq/baton/driver"
)

// A new client that meets a cut connection opens its store again, and gives up after an error
// that is permanent.
func TestUntilReached(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), openTimeout)
		defer cancel()
		tries := 0
		failing := func(times int, err error) func() error {
			tries = 0
			return func() error {
				if tries++; tries <= times {
					return fmt.Errorf("x: %w", err)
				}
				return nil
			}
		}
		for _, err := range []error{driver.ErrUnavailable, driver.ErrUnknown} {
			if got := untilReached(ctx, failing(3, err)); got != nil || tries != 4 {
				t.Errorf("%v: %v after %d tries", err, got, tries)
			}
		}
		refused := errors.New("refused")
		if got := untilReached(ctx, failing(3, refused)); !errors.Is(got, refused) || tries != 1 {
			t.Errorf("%v after %d tries", got, tries)
		}
		began := time.Now()
		if got := untilReached(ctx, failing(1e6, driver.ErrUnavailable)); !errors.Is(got, driver.ErrUnavailable) || time.Since(began) > openTimeout {
			t.Errorf("%v after %v", got, time.Since(began))
		}
	})
}
