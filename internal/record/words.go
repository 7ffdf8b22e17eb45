package record

import "github.com/batonhq/baton/driver"

// The words for the state of an operation, as operators read them in the stores that
// keep them.
const (
	begun     = "begun"  // or crashed
	failed    = "failed" // and another attempt may begin
	final     = "final"  // it has failed for good
	succeeded = "succeeded"
)

// Word is the word for the state of an operation.
func Word(done bool, o driver.Outcome) string {
	switch {
	case o.Retry:
		return failed
	case o.Failed:
		return final
	case done:
		return succeeded
	}
	return begun
}

// Read is what a word of Word says, without the result. It takes any other word for an
// attempt that has begun.
func Read(word string) (done bool, o driver.Outcome) {
	return word == succeeded || word == final, driver.Outcome{Failed: word == final, Retry: word == failed}
}
