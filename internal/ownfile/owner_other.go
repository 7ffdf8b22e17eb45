//go:build !unix

package ownfile

import "io/fs"

const hasModes = false

// Foreign returns false: this system has no such owners.
func Foreign(fs.FileInfo) (uid uint32, foreign bool) { return 0, false }
