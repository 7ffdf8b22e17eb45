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
// see these calls implements the interface itself, or, because the wrapped store may
// lack the ability, has a method
//
//	As(target any) bool
//
// which is asked before Unwrap: target is a *T. The method sets it and returns true,
// or returns false and changes nothing.
func As[T any](l Locks) (ability T, ok bool) {
	for l != nil {
		if ability, ok = l.(T); ok {
			return ability, true
		}
		if wrapper, has := l.(interface{ As(target any) bool }); has && wrapper.As(&ability) {
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
