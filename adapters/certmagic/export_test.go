package batoncertmagic

// Names is how many names a Storage keeps in memory.
func (s *Storage) Names() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.names)
}
