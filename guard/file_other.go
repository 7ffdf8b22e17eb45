//go:build !(linux || darwin || freebsd || netbsd || openbsd || dragonfly)

package guard

import (
	"errors"
	"os"
)

const noFollow = 0

func tryFlock(*os.File) (bool, error) { return false, errors.ErrUnsupported }
