// Package workers has the clients of package verify in other languages, as files.
package workers

import "embed"

// Files are the programs. worker.py needs the package baton beside it; worker.php is told where
// baton.php is.
//
//go:embed worker.py worker.php
var Files embed.FS
