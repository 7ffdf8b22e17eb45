//go:build !linux && !darwin

package sqlitestore

import (
	"errors"
	"os"
)

// Without a clock that all processes of one boot share and a name for that boot, expiry
// cannot be decided. Open refuses before these are used.

func bootClock() int64                       { return 0 }
func bootID() (string, error)                { return "", ErrPlatform }
func shiftedClock() bool                     { return false }
func remoteFS(string) (string, error)        { return "", ErrPlatform }
func flock(*os.File) error                   { return errors.ErrUnsupported }
func funlock(*os.File)                       {}
func socketPath(_ *os.File, _ string) string { return "" }

func checkRoot(string) error                                   { return ErrPlatform }
func openBeside(string, os.FileInfo) (*os.File, error)         { return nil, ErrPlatform }
func openLock(*os.File, string, os.FileInfo) (*os.File, error) { return nil, ErrPlatform }
func checkLog(string, os.FileInfo) error                       { return ErrPlatform }
func removeFrom(*os.File, string)                              {}
func shareSocket(*os.File, string, os.FileInfo) error          { return ErrPlatform }
func lookAround(string) surroundings                           { return surroundings{free: -1} }

func reach(*os.File, string) (string, func(), error) { return "", nil, ErrPlatform }
func sendTo(string, []byte) error                    { return ErrPlatform }
