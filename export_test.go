package baton

import "github.com/batonhq/baton/internal/acquire"

// Leftovers counts what an idle Locker must not have: local queues, and
// acquisitions that the renewer knows.
func (l *Locker) Leftovers() (queues, acquisitions int) {
	for i := range l.queues {
		sh := &l.queues[i]
		sh.Lock()
		queues += len(sh.queues)
		sh.Unlock()
	}
	l.renewer.mu.Lock()
	defer l.renewer.mu.Unlock()
	return queues, len(l.renewer.heap)
}

// Contexts counts the contexts that a lease keeps.
func Contexts(l *Lease) int {
	l.keeper.mu.Lock()
	defer l.keeper.mu.Unlock()
	return len(l.root().contexts)
}

// LoseUntold ends a lease and stops before it reports that, as a goroutine that
// notices the end of a lease may for as long as the system likes.
func LoseUntold(l *Lease) (tell func()) {
	k := l.keeper
	k.mu.Lock()
	defer k.mu.Unlock()
	after := k.apply(k.acq.Lose(acquire.Expired))
	return after.perform
}
