//go:build !linux

package testserver

import "errors"

func mountDisk(string, int64) error  { return errors.ErrUnsupported }
func resizeDisk(string, int64) error { return errors.ErrUnsupported }
func unmountDisk(string) error       { return errors.ErrUnsupported }

func diskUsed(string) (int64, error) { return 0, errors.ErrUnsupported }
