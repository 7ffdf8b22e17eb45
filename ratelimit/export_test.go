package ratelimit

// LocalStates is how many keys FailLocal remembers.
func (l *Limiter) LocalStates() int {
	l.fall.mu.Lock()
	defer l.fall.mu.Unlock()
	return len(l.fall.states)
}

// Batches is how many keys InBatches holds something of.
func (l *Limiter) Batches() int {
	l.batches.mu.Lock()
	defer l.batches.mu.Unlock()
	return len(l.batches.keys)
}
