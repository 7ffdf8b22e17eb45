//go:build !unix

package main

import (
	"errors"
	"os"
)

// canStop is false where processes cannot be stopped. Then only the induced pauses are
// shown.
const canStop = false

func stopHere() error { return errors.ErrUnsupported }

func goOn(*os.Process) error { return errors.ErrUnsupported }
