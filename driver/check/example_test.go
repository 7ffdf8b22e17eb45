package check_test

import (
	"fmt"

	"github.com/batonhq/baton/driver/check"
)

// A store refuses what no store can keep, before it asks anybody.
func ExampleKey() {
	fmt.Println(check.Key("invoice/42"))
	fmt.Println(check.Key("two\nlines"))
	// Output:
	// <nil>
	// bad key "two\nlines": it has a control character (0x0a) at byte 3
}
