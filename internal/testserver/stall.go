package testserver

import "errors"

var errNotSyncing = errors.New("the server waits for no disk")

// Stalling returns a TB whose servers have disks that can be stalled: see
// Process.StallDisk. Where that is not possible it fails the test, or skips it if it may
// not start servers. A Site has a field for it.
func Stalling(t TB) TB {
	t.Helper()
	s, err := newStaller()
	if err == nil {
		s.close()
	}
	if mayStart(t) && err != nil {
		t.Fatalf("no disk can be stalled: %v", err)
	}
	return stalling{t}
}

// stalling marks a test.
type stalling struct{ TB }

// stalls reports whether the disks of a test's servers can be stalled. Such a server must
// wait for its disk; its fsync costs little.
func stalls(t TB) bool {
	switch t := t.(type) {
	case stalling:
		return true
	case *Site:
		return t.Stalls
	}
	return false
}

// CanStallDisk reports whether StallDisk has an effect.
func (p *Process) CanStallDisk() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.staller != nil
}

// StallDisk makes each fsync and fdatasync of the server hang until ResumeDisk; the rest
// of the server continues as far as it can. It fails the test if the server was not
// started by Stalling, or by a Site that stalls.
func (p *Process) StallDisk() { p.setStalled(true) }

// ResumeDisk ends StallDisk. It may be repeated.
func (p *Process) ResumeDisk() { p.setStalled(false) }

func (p *Process) setStalled(stalled bool) {
	p.t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.staller == nil {
		p.t.Fatalf("the disk of the server cannot be stalled: it was not started for that")
		return
	}
	p.staller.set(stalled)
}

// AwaitStalled returns when the server waits for its stalled disk.
func (p *Process) AwaitStalled() {
	p.t.Helper()
	poll(p.t, "a call that the stalled disk keeps waiting", func() error {
		p.mu.Lock()
		defer p.mu.Unlock()
		if p.staller == nil || p.staller.syncing() == 0 {
			return errNotSyncing
		}
		return nil
	})
}
