package baton

// Leftovers counts what an idle Locker must not have: lines, and stakes that
// the renewer knows.
func (l *Locker) Leftovers() (lines, stakes int) {
	for i := range l.lines {
		sh := &l.lines[i]
		sh.Lock()
		lines += len(sh.lines)
		sh.Unlock()
	}
	l.renewer.mu.Lock()
	defer l.renewer.mu.Unlock()
	return lines, len(l.renewer.heap)
}

// Contexts counts those that a lease keeps.
func Contexts(l *Lease) int {
	l.stake.mu.Lock()
	defer l.stake.mu.Unlock()
	return len(l.tenant().contexts)
}

// LoseUntold ends a lease's stake and stops before it tells anybody: what
// whoever notices the end of a lease may do for as long as the system likes.
func LoseUntold(l *Lease) (tell func()) {
	s := l.stake
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.loseLocked(Expired)
}
