//go:build unix

package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/batonhq/baton/open"
)

// baton help stores has all schemes that an error offers.
func TestStoresHaveAllSchemes(t *testing.T) {
	t.Parallel()
	_, err := open.Store(t.Context(), "baseball://host")
	_, names, offered := strings.Cut(fmt.Sprint(err), "there are ")
	if !offered {
		t.Fatalf("the error offers no schemes: %v", err)
	}
	topic, _, err := (&app{}).root().Find([]string{"stores"})
	if err != nil {
		t.Fatal(err)
	}
	for name := range strings.SplitSeq(names, ", ") {
		if !strings.Contains(topic.Long, " "+name+":") {
			t.Errorf("baton help stores does not have %s", name)
		}
	}
}
