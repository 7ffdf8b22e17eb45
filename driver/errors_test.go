package driver_test

import (
	"errors"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/batonhq/baton/driver"
)

// hostile are texts that change what a terminal or a log shows.
var hostile = []string{"\x1b[2J", "a\nlevel=ERROR msg=forged", "\u009b31m", "\u202egnp.exe", "\u2066x", "\xff\xfe", "\x00", "\u2028", "\u200b"}

// No error contains text that others wrote into a store as it is.
func TestErrorsEscapeTextOfOthers(t *testing.T) {
	t.Parallel()
	for _, text := range hostile {
		for _, err := range []error{
			&driver.HeldError{Key: "k" + text, Owner: "host" + text + ":1"},
			&driver.QueueFullError{Key: text, Waiting: 3},
			&driver.CapacityError{Key: text, InUse: 2, Asked: 3},
			&driver.NotLockError{Key: text, Store: "redis", Found: "a " + text},
			&driver.KeyError{Key: text, Reason: "redis has a " + text},
			&driver.RequestError{Key: text, Field: "owner", Reason: "bad"},
			&driver.SupersededError{Key: text, Token: 1, Last: 2},
			errors.New(driver.Printable(text)),
		} {
			s := err.Error()
			if strings.Contains(s, text) || !utf8.ValidString(s) || strings.ContainsFunc(s, func(r rune) bool { return !strconv.IsPrint(r) }) {
				t.Errorf("%T shows %q as %q", err, text, s)
			}
		}
	}
	for _, text := range []string{"", "a hash", `it's "x" \ ß 錠`} {
		if got := driver.Printable(text); got != text {
			t.Errorf("%q became %q", text, got)
		}
	}
	if got := (&driver.HeldError{Key: "k", Owner: "x for 3s, 0 waiting"}).Error(); got != `lock "k" is held by "x for 3s, 0 waiting"` {
		t.Error(got)
	}
	if got := (&driver.HeldError{Key: "k", Owner: "host:7"}).Error(); got != `lock "k" is held by host:7` {
		t.Error(got)
	}
}
