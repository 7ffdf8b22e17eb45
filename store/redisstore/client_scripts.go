package redisstore

import (
	"context"
	"embed"
	"fmt"
	"slices"
	"strconv"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

//go:embed scripts/*.lua
var luaFiles embed.FS

// The scripts. The head of each file describes KEYS and ARGV.
var (
	acquireScript   = script("acquire_seed", "acquire", "clock")
	releaseScript   = script("release_next", "release", "grant_next")
	combinedScript  = script("combined", "clock", "acquire_one", "grant_next", "release_one")
	renewScript     = script("renew")
	renewHeldScript = script("renew_held", "clock", "state")
	enterScript     = script("enter", "enqueue", "clock", "state", "refuse")
	togetherScript  = script("together", "clock", "state", "end_held", "refuse")
	leaveScript     = script("end", "clock", "state", "end_held")
	endAloneScript  = script("end_alone", "clock", "state", "end_held")
	refreshScript   = script("refresh", "clock", "state")
	downgradeScript = script("downgrade", "clock", "state")
	moveScript      = script("move", "clock", "state")
	renameScript    = script("rename", "clock", "state")
	inspectScript   = script("inspect", "clock", "state")
	breakScript     = script("break", "clock", "state", "end_held")
	raiseScript     = script("raise", "clock")
	simpleScript    = script("simple_rest", "simple", "rate", "window", "approx", "bucket", "several", "decide")
	swapScript      = script("swap")
	keptScript      = script("limit_look")
	limitScript     = script("limit", "rate", "window", "approx", "bucket", "several", "decide")

	// The variants of limit for only windows, estimates or buckets lack the functions of
	// the other kinds: Lua creates a script's functions again at every call.
	windowScript = script("limit", "rate", "window", "several", "decide")
	approxScript = script("limit", "rate", "approx", "several", "decide")
	bucketScript = script("limit", "rate", "bucket", "several", "decide")
)

// script joins a script with the files that it shares with others.
func script(name string, shared ...string) *wire.Script {
	return wire.NewScript(name, func() string {
		text := fmt.Sprintf("local WAITER = %d -- µs that a waiter lives\n", driver.WaiterTTL.Microseconds())
		for _, part := range append(shared, name) {
			b, err := luaFiles.ReadFile("scripts/" + part + ".lua")
			if err != nil {
				panic(err) // the file is embedded
			}
			text += string(b)
		}
		return text
	})
}

// run runs a script; if the server does not know the script, with its text.
func (s *Store) run(ctx context.Context, script *wire.Script, keys, args []string) (any, error) {
	return s.runCall(ctx, wire.Call{Script: script, Keys: keys, Args: args})
}

func (s *Store) runCall(ctx context.Context, call wire.Call) (any, error) {
	if s.closed.Load() {
		return nil, driver.ErrClosed
	}
	v, err := s.client.Run(ctx, call)
	if err != nil && wire.IsNoScript(err) {
		call.Full = true
		v, err = s.client.Run(ctx, call)
	}
	if err != nil {
		return nil, failure(err)
	}
	return v, nil
}

// runAll runs scripts independently of each other.
func (s *Store) runAll(ctx context.Context, calls []wire.Call) []wire.Result {
	if s.closed.Load() {
		return slices.Repeat([]wire.Result{{Err: driver.ErrClosed}}, len(calls))
	}
	results := s.client.RunAll(ctx, calls)
	for i := range results {
		if results[i].Err != nil {
			results[i].Err = failure(results[i].Err)
		}
	}
	return results
}

// number reads an integer, which Redis may answer as text.
func number(v any) int64 {
	switch v := v.(type) {
	case int64:
		return v
	case string:
		n, _ := strconv.ParseInt(v, 10, 64)
		return n
	}
	return 0
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

func list(v any) []any {
	l, _ := v.([]any)
	return l
}
