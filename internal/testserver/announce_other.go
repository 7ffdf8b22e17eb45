//go:build !linux

package testserver

import (
	"errors"
	"os"
)

// callersErrors is the standard error of the go command that runs the tests.
func callersErrors() (*os.File, error) { return nil, errors.ErrUnsupported }
