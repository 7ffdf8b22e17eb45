//go:build !unix

package testserver

import (
	"errors"
	"os"
)

// Freeze fails: processes cannot be stopped here.
func Freeze(*os.Process) error { return errors.ErrUnsupported }

// Thaw fails as well.
func Thaw(*os.Process) error { return errors.ErrUnsupported }
