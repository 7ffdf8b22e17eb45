package record

// The words for what has become of an operation, as operators read them in the
// stores that keep them.
const (
	Begun     = "begun"
	Succeeded = "succeeded"
	Failed    = "failed"
)

// Word is the word for an operation that is done or not, and if so failed or not.
func Word(done, failed bool) string {
	switch {
	case failed:
		return Failed
	case done:
		return Succeeded
	}
	return Begun
}
