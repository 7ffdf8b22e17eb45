package driver

// As returns the first of l and the stores that it wraps that has the ability T, which
// is one of the interfaces of this package or another one that stores may implement.
//
// A store that wraps another one keeps the abilities of that by a method
//
//	Unwrap() driver.Locks
//
// What is called by such an ability goes past the wrapping store. One that must see
// these calls, too, has the method itself.
func As[T any](l Locks) (ability T, ok bool) {
	for l != nil {
		if ability, ok = l.(T); ok {
			return ability, true
		}
		wrapping, wraps := l.(interface{ Unwrap() Locks })
		if !wraps {
			break
		}
		l = wrapping.Unwrap()
	}
	return ability, false
}
