package driver

import "reflect"

// As returns the first store among l and the stores that it wraps that has the ability T:
// an interface of this package, or another one that stores may implement.
//
// A store that wraps another one shows the abilities of that one by a method
//
//	Unwrap() driver.Locks
//
// A call through such an ability bypasses the wrapping store. A wrapper that must see
// these calls implements the interface itself, or, because the wrapped store may lack the
// ability, has a method
//
//	As(target any) bool
//
// As calls this method before Unwrap. target is a *T. The method sets it and returns
// true, or returns false and changes nothing.
// or returns false and changes nothing.
func As[T any](l Locks) (ability T, ok bool) {
	for l != nil {
		if ability, ok = l.(T); ok {
			return ability, true
		}
		if wrapper, has := l.(interface{ As(target any) bool }); has && wrapper.As(&ability) {
			return ability, true
		}
		l = unwrap(l)
	}
	return ability, false
}

// SameStore reports whether a and b are, or wrap, the same store.
func SameStore(a, b Locks) bool {
	a, b = innermost(a), innermost(b)
	return reflect.TypeOf(a).Comparable() && a == b
}

func innermost(l Locks) Locks {
	for {
		inner := unwrap(l)
		if inner == nil {
			return l
		}
		l = inner
	}
}

// unwrap returns the store that l wraps, or nil.
func unwrap(l Locks) Locks {
	if wrapping, wraps := l.(interface{ Unwrap() Locks }); wraps {
		return wrapping.Unwrap()
	}
	return nil
}
