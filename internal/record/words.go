package record

// The words for the outcome of an operation, as operators read them in the stores that
// keep them.
const (
	Begun     = "begun"
	Succeeded = "succeeded"
	Failed    = "failed"
)

// Word is the word for the outcome of an operation.
func Word(done, failed bool) string {
	switch {
	case failed:
		return Failed
	case done:
		return Succeeded
	}
	return Begun
}
