package redisstore

import (
	"embed"
	"fmt"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

//go:embed scripts/*.lua
var luaFiles embed.FS

// The scripts. Each file says at its head what KEYS and ARGV are.
var (
	acquireScript   = script("acquire_seed", "acquire", "clock")
	releaseScript   = script("release_next", "release", "grant_next")
	combinedScript  = script("combined", "clock", "acquire_one", "grant_next", "release_one")
	renewScript     = script("renew")
	enterScript     = script("enter", "enqueue", "clock", "state", "refuse")
	togetherScript  = script("together", "clock", "state", "end_held", "refuse")
	leaveScript     = script("end", "clock", "state", "end_held")
	refreshScript   = script("refresh", "clock", "state")
	downgradeScript = script("downgrade", "clock", "state")
	moveScript      = script("move", "clock", "state")
	renameScript    = script("rename", "clock", "state")
	inspectScript   = script("inspect", "clock", "state")
	breakScript     = script("break", "clock", "state")
	raiseScript     = script("raise", "clock")
	simpleScript    = script("simple_rest", "simple", "rate", "window", "approx", "bucket", "several", "decide")
	recordScript    = script("record")
	overrideScript  = script("override")
	keptScript      = script("limit_look")
	limitScript     = script("limit", "rate", "window", "approx", "bucket", "several", "decide")

	// The same for limits that are all windows, estimates or buckets, without the
	// functions of the others: Lua creates a script's functions again at every call.
	windowScript = script("limit", "rate", "window", "several", "decide")
	approxScript = script("limit", "rate", "approx", "several", "decide")
	bucketScript = script("limit", "rate", "bucket", "several", "decide")
)

// script joins a script with the parts that it shares with others.
func script(name string, shared ...string) *wire.Script {
	return wire.NewScript(name, func() string {
		text := fmt.Sprintf("local WAITER = %d -- µs that a waiter lives\n", driver.WaiterTTL.Microseconds())
		for _, part := range append(shared, name) {
			b, err := luaFiles.ReadFile("scripts/" + part + ".lua")
			if err != nil {
				panic(err) // the file is part of the program
			}
			text += string(b)
		}
		return text
	})
}
