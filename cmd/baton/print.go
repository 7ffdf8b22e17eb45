package main

import "github.com/batonhq/baton/internal/cli"

// Shared with baton-lab.
var (
	does       = cli.Does
	safe       = cli.Safe
	shellWord  = cli.ShellWord
	short      = cli.Short
	shortUp    = cli.ShortUp
	seconds    = cli.Seconds
	secondsUp  = cli.SecondsUp
	printJSON  = cli.JSON
	escapeJSON = cli.EscapeJSON
	table      = cli.Table
	layout     = cli.Layout
	cut        = cli.Cut
)
