//go:build !linux && !darwin

package sqlitestore

import (
	"errors"
	"os"
)

// Without a clock that all processes of one boot share and a name for that
// boot, expiry cannot be decided; Open refuses before any of this is used.

func bootClock() int64                       { return 0 }
func bootID() (string, error)                { return "", ErrPlatform }
func shiftedClock() bool                     { return false }
func remoteFS(string) (string, error)        { return "", ErrPlatform }
func flock(*os.File) error                   { return errors.ErrUnsupported }
func funlock(*os.File)                       {}
func socketPath(_ *os.File, _ string) string { return "" }
func giveTo(string, os.FileInfo)             {}

func sendTo(*os.File, string, []byte) error { return errors.ErrUnsupported }
