package memstore_test

import (
	"errors"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/memstore"
)

func TestExamine(t *testing.T) {
	t.Parallel()
	s := memstore.New()
	found, err := s.Examine(t.Context())
	if err != nil || len(found) != 1 || found[0].Name != "this-process" || found[0].Severity != driver.Note {
		t.Errorf("found %v, error %v", found, err)
	}
	s.Close()
	if _, err := s.Examine(t.Context()); !errors.Is(err, driver.ErrClosed) {
		t.Errorf("closed: %v", err)
	}
}
