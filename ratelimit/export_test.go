package ratelimit

// LocalStates is how many keys FailLocal remembers.
func (l *Limiter) LocalStates() int {
	l.fall.mu.Lock()
	defer l.fall.mu.Unlock()
	return len(l.fall.states)
}
