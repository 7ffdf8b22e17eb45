package bound

import "context"

// Call calls f, which ignores contexts, and returns its result, or ctx.Err() if ctx ends
// first. In that case f continues, and late, if not nil, gets its result unless that is
// an error.
func Call[T any](ctx context.Context, f func() (T, error), late func(T)) (T, error) {
	type answer struct {
		value T
		err   error
	}
	done := make(chan answer, 1)
	go func() {
		v, err := f()
		done <- answer{v, err}
	}()
	select {
	case a := <-done:
		return a.value, a.err
	case <-ctx.Done():
		if late != nil {
			go func() {
				if a := <-done; a.err == nil {
					late(a.value)
				}
			}()
		}
		var none T
		return none, ctx.Err()
	}
}
