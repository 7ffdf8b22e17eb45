package testserver

import (
	"fmt"
	"os"
	"strings"
)

// callersErrors is the standard error of the go command that runs the tests.
func callersErrors() (*os.File, error) {
	parent := fmt.Sprintf("/proc/%d/", os.Getppid())
	if name, err := os.ReadFile(parent + "comm"); err != nil || strings.TrimSpace(string(name)) != "go" {
		return nil, fmt.Errorf("not run by the go command")
	}
	return os.OpenFile(parent+"fd/2", os.O_WRONLY|os.O_APPEND, 0)
}
