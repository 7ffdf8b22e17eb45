package testserver

import "testing"

func TestMariaDBRestarts(t *testing.T) {
	t.Parallel()
	s := MariaDB(t)
	before := s.Pid()
	s.Restart()
	if s.Pid() == before {
		t.Error("the process is the same after the restart")
	}
	if err := greets(s.Addr); err != nil {
		t.Error(err)
	}
}
