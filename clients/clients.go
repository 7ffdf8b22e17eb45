// Package clients embeds the files of the agent's clients for other languages.
package clients

import "embed"

// Files are those that the programs of package lab/verify/workers need.
//
//go:embed python/baton/__init__.py python/baton/common.py php/baton.php
var Files embed.FS
