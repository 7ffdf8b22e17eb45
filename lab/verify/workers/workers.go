// Package workers embeds the clients of package verify in other languages.
package workers

import "embed"

// Files are the programs. worker.py needs the package baton beside it; worker.php is told where
// baton.php is.
//
//go:embed worker.py worker.php
var Files embed.FS
