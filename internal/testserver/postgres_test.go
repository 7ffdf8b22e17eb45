package testserver

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// A server that is not needed any more leaves no shared memory behind, frozen or
// not.
func TestPostgresLeavesNothing(t *testing.T) {
	NeedPostgres(t)
	t.Parallel()
	var program Program
	defer program.Close()
	var segments []string
	for i := range 2 {
		s := Postgres(&program)
		text, err := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
		if err != nil {
			t.Fatal(err)
		}
		fields := strings.Fields(strings.Split(string(text), "\n")[6]) // key and id
		if all := sharedMemory(t); len(fields) != 2 || !slices.Contains(all, fields[1]) {
			t.Fatalf("its shared memory %q is not one of %q", fields, all)
		}
		segments = append(segments, fields[1])
		if i > 0 {
			s.Stop()
		}
	}
	program.Close()
	for _, id := range segments {
		if slices.Contains(sharedMemory(t), id) {
			t.Errorf("shared memory %s was left behind", id)
		}
	}
}

// sharedMemory is the ids of all segments on the machine.
func sharedMemory(t *testing.T) (ids []string) {
	t.Helper()
	text, err := os.ReadFile("/proc/sysvipc/shm")
	if err != nil {
		t.Skipf("this system does not list shared memory: %v", err)
	}
	for line := range strings.Lines(string(text)) {
		ids = append(ids, strings.Fields(line)[1])
	}
	return ids
}
