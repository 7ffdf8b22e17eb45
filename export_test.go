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
