package supervise

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// The test binary is also what the tests run.
func TestMain(m *testing.M) {
	switch os.Getenv("SUPERVISE_ROLE") {
	case "parent":
		self, err := os.Executable()
		if err != nil {
			os.Exit(98)
		}
		child := exec.Command(self)
		child.Env = append(os.Environ(), "SUPERVISE_ROLE=child")
		if child.Start() != nil {
			os.Exit(98)
		}
		if os.WriteFile(os.Getenv("SUPERVISE_FILE"), nil, 0o600) != nil {
			os.Exit(98)
		}
		os.Exit(7)
	case "child":
		<-time.After(time.Hour)
	}
	os.Exit(m.Run())
}

// What the command has started is in its job, and is stopped with it.
func TestStopTree(t *testing.T) {
	file := filepath.Join(t.TempDir(), "begun")
	c, err := Start(Command{
		Path: os.Args[0], Args: []string{"supervised"}, Env: append(os.Environ(), "SUPERVISE_ROLE=parent", "SUPERVISE_FILE="+file),
		Stdin: os.Stdin, Stdout: os.Stdout, Stderr: os.Stderr,
	})
	if err != nil {
		t.Fatal(err)
	}
	<-c.Done()
	if c.Code() != 7 {
		t.Fatalf("code %d, want the command's own 7", c.Code())
	}
	if c.Gone() {
		t.Error("the command counts as gone although what it started lives")
	}
	if o := c.Stop(0); !o.Killed || o.Left || !c.Gone() {
		t.Errorf("Stop = %+v, gone %v", o, c.Gone())
	}
}
