package driver

// As returns the first among l and the stores that it wraps that has the ability T,
// which is one of the interfaces of this package or another one that stores may
// implement.
//
// A store that wraps another one shows the abilities of that one by a method
//
//	Unwrap() driver.Locks
//
// A call through such an ability goes past the wrapping store. A wrapper that must
// see these calls implements the interface itself.
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
