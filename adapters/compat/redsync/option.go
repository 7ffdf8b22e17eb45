package redsync

import "time"

// A DelayFunc returns the wait before an attempt: tries is 1 before the second one.
type DelayFunc func(tries int) time.Duration

// An Option configures a Mutex.
type Option interface {
	Apply(*Mutex)
}

// OptionFunc is an Option that is a function.
type OptionFunc func(*Mutex)

// Apply calls f.
func (f OptionFunc) Apply(mutex *Mutex) { f(mutex) }

// WithExpiry sets how long the lock lasts, at least 100ms, and over several pools at most a
// minute. Defaults to 8s.
func WithExpiry(expiry time.Duration) Option {
	return OptionFunc(func(m *Mutex) { m.expiry = expiry })
}

// WithTries sets how many attempts Lock makes. Defaults to 32.
func WithTries(tries int) Option {
	return OptionFunc(func(m *Mutex) { m.tries = tries })
}

// WithRetryDelay sets the wait between attempts. Defaults to a random one of 50 to 250ms.
func WithRetryDelay(delay time.Duration) Option {
	return WithRetryDelayFunc(func(int) time.Duration { return delay })
}

// WithRetryDelayFunc sets the waits between attempts.
func WithRetryDelayFunc(delayFunc DelayFunc) Option {
	return OptionFunc(func(m *Mutex) { m.delayFunc = delayFunc })
}

// WithSetNXOnExtend lets Extend lock again if the lock has ended and is free. Another
// caller may have held it in between, and the fencing token is another one.
func WithSetNXOnExtend() Option {
	return OptionFunc(func(m *Mutex) { m.setNXOnExtend = true })
}

// WithDriftFactor sets the part of the expiry by which Until is earlier. Defaults to
// 0.01.
func WithDriftFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) { m.driftFactor = factor })
}

// WithTimeoutFactor sets the part of the expiry that bounds one attempt. Defaults to 0.05.
func WithTimeoutFactor(factor float64) Option {
	return OptionFunc(func(m *Mutex) { m.timeoutFactor = factor })
}

// WithGenValueFunc generates the beginnings of values; random characters follow. It is
// called for each attempt. Defaults to random values.
func WithGenValueFunc(genValueFunc func() (string, error)) Option {
	return OptionFunc(func(m *Mutex) { m.genValueFunc = genValueFunc })
}

// WithValue is for a lock that another Mutex with that Value has locked: this one can
// extend and unlock it.
func WithValue(v string) Option {
	return OptionFunc(func(m *Mutex) { m.value = v })
}

// WithFailFast has no effect: Lock never waits for more servers than a majority.
func WithFailFast(bool) Option { return OptionFunc(func(*Mutex) {}) }

// WithShufflePools has no effect: all servers are asked at the same time.
func WithShufflePools(bool) Option { return OptionFunc(func(*Mutex) {}) }
