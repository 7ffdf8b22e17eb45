package testserver

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// A Site is the TB of a program that continues when a server does not start. Each of its
// servers has a machine of its own, whose clock and disk can be broken.
//
// Call everything that may fail within Try: where a test would end, a Site panics.
type Site struct {
	Program

	// Clocks gives the machines clocks that can be set, if libfaketime is installed. It
	// does not work with Java, and Go ignores it.
	Clocks bool

	// Stalls gives the servers disks that can be stalled: see Process.StallDisk. Without
	// Linux and seccomp such a server does not start.
	Stalls bool

	mu       sync.Mutex
	machines map[string]*Machine // by the directory of the server
}

// failure is what a Site panics with.
type failure struct{ error }

// Try calls f, and returns the failure that ended it early.
func (s *Site) Try(f func()) (err error) {
	defer func() {
		switch x := recover().(type) {
		case nil:
		case failure:
			err = x.error
		default:
			panic(x)
		}
	}()
	f()
	return nil
}

// Fatalf makes Try return the message.
func (s *Site) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) }

// Skipf makes Try return the message.
func (s *Site) Skipf(format string, args ...any) { s.Fatalf(format, args...) }

// A Machine is what one server of a Site runs on.
type Machine struct {
	dir   string
	clock *Clock // nil: none
	disk  int64  // its size in bytes; 0: a directory on the common disk
}

// diskSize is the size of a machine's disk. Only the part in use takes memory.
const diskSize = 1 << 30

// Dir is the directory of all that the server keeps.
func (m *Machine) Dir() string { return m.dir }

// HasClock and HasDisk report whether SetClock and FillDisk can do something.
func (m *Machine) HasClock() bool { return m.clock != nil }
func (m *Machine) HasDisk() bool  { return m.disk != 0 }

// SetClock sets the wall clock of the machine.
func (m *Machine) SetClock(offset time.Duration) error {
	if m.clock == nil {
		return errors.New("the server has no clock that can be set")
	}
	return m.clock.set(offset)
}

// FillDisk leaves no space on the machine's disk until free is called, which may be
// repeated. It fails where disks of a given size cannot be mounted.
func (m *Machine) FillDisk() (free func() error, err error) {
	if m.disk == 0 {
		return nil, errors.New("the disk of a server cannot be filled: that takes Linux, and root, who may mount")
	}
	used, err := diskUsed(m.dir)
	if err != nil {
		return nil, err
	}
	// A process that writes meanwhile uses more, and a size of 0 means no limit.
	for range 100 {
		if err = resizeDisk(m.dir, max(used, 4096)); err == nil {
			return func() error { return resizeDisk(m.dir, m.disk) }, nil
		}
		if used, err = diskUsed(m.dir); err != nil {
			return nil, err
		}
	}
	return nil, fmt.Errorf("fill the disk at %s: %w", m.dir, err)
}

// FreshDir makes a directory that is the disk of a machine without a server. It is
// removed with the site.
func (s *Site) FreshDir() *Machine { return s.machine(freshDir(s)) }

// settle makes a fresh directory a machine.
func (s *Site) settle(dir string) {
	m := &Machine{dir: dir}
	if lib := faketime(); lib != "" && s.Clocks {
		m.clock = newClock(s, lib, dir+".clock")
		s.Cleanup(func() { _ = os.Remove(m.clock.file) }) // otherwise it is removed with the root
	}
	if mountDisk(dir, diskSize) == nil {
		m.disk = diskSize
		s.Cleanup(func() { _ = unmountDisk(dir) }) // the remover does the rest
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.machines == nil {
		s.machines = make(map[string]*Machine)
	}
	s.machines[dir] = m
}

func (s *Site) machine(dir string) *Machine {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machines[dir]
}

// Machine returns the machine of the server, or nil if it belongs to no Site.
func (p *Process) Machine() *Machine {
	if s, ok := p.t.(*Site); ok {
		return s.machine(p.dir)
	}
	return nil
}

// faketime returns the path of libfaketime, or "" if it is not installed: of the variant
// in which no thread reads the offset while another one sets it up.
func faketime() string {
	libs, _ := filepath.Glob("/usr/lib/*/faketime/libfaketimeMT.so.1") // the pattern is right
	if len(libs) == 0 {
		return ""
	}
	return libs[0]
}
