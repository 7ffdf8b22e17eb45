package guard

import (
	"context"
	_ "embed"
	"fmt"
	"strconv"
	"strings"
)

// Redis runs a Lua script on a Redis server, as EVAL does, and returns its answer:
// strings or []byte, int64, nil, and []any of these. It lets this package work with
// every client:
//
//	func(ctx context.Context, script string, keys, args []string) (any, error) {
//		return client.Do(ctx, client.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToAny() // rueidis
//	}
//
// (for go-redis see the example). The function must be safe for concurrent use. A
// Redis is Marks, and its Do checks and writes in one step.
//
// The mark is stored beside what it guards, on the same slot of a Cluster, and does not
// expire. It is as durable as the server's data: a failover or a restart that loses a
// mark also loses the writes that had raised it. Do not let the server evict it
// (maxmemory-policy noeviction or volatile-…).
type Redis func(ctx context.Context, script string, keys, args []string) (any, error)

// RedisScript is the script, for programs in other languages.
//
//	EVAL script 2 MARK KEY TOKEN HOLDER COMMAND [ARG …]
//
// runs COMMAND KEY ARG … and answers ["done", its answer] if the token is not
// lower than that in MARK; else it answers ["stale", the last token] and does
// nothing. Without KEY, COMMAND and ARG it only checks and raises the mark. The
// token is written in decimal: numbers of Lua and JavaScript would round it.
//
//go:embed fence.lua
var RedisScript string

// RedisMark is the name of the mark of a key: fence:{KEY}, or fence:{TAG}:KEY if
// the key has a hash tag. A key with a closing brace that ends no tag is a
// *PassError.
func RedisMark(key string) (string, error) {
	close := strings.IndexByte(key, '}')
	if close < 0 {
		return "fence:{" + key + "}", nil
	}
	open := strings.IndexByte(key, '{')
	if open < 0 {
		return "", &PassError{fmt.Sprintf("key %q has a brace that ends no hash tag", key)}
	}
	end := strings.IndexByte(key[open:], '}')
	if end < 2 {
		return "", &PassError{fmt.Sprintf("key %q has a brace that ends no hash tag", key)}
	}
	return "fence:{" + key[open+1:open+end] + "}:" + key, nil
}

// Raise implements Marks. It does not guard a later write elsewhere against a pause in
// between: see Do and Gate.
func (r Redis) Raise(ctx context.Context, resource string, p Pass) error {
	_, err := r.run(ctx, resource, p, nil)
	return err
}

// Do runs a command whose first argument is a key, such as SET, HSET or INCRBY, if the
// mark of the key admits p, in one atomic step. It returns the command's answer, or a
// *StaleError. If the command itself fails, the mark has been raised. After an error of
// the client the command may have run, as with every command.
func (r Redis) Do(ctx context.Context, key string, p Pass, command string, args ...string) (answer any, err error) {
	return r.run(ctx, key, p, append([]string{command}, args...))
}

func (r Redis) run(ctx context.Context, key string, p Pass, command []string) (any, error) {
	if err := legal(key, p); err != nil {
		return nil, err
	}
	mark, err := RedisMark(key)
	if err != nil {
		return nil, err
	}
	keys := []string{mark}
	if command != nil {
		keys = append(keys, key)
	}
	answer, err := r(ctx, RedisScript, keys, append([]string{strconv.FormatInt(p.Token, 10), p.Holder}, command...))
	if err != nil {
		return nil, fmt.Errorf("guard: %q: %w", key, err)
	}
	list, _ := answer.([]any)
	if len(list) > 0 {
		switch text(list[0]) {
		case "done":
			if len(list) > 1 {
				return list[1], nil
			}
			return nil, nil
		case "stale":
			if len(list) > 1 {
				if last, err := strconv.ParseInt(text(list[1]), 10, 64); err == nil {
					return nil, refuse(ctx, "redis", key, p, last)
				}
			}
		}
	}
	return nil, fmt.Errorf("guard: %q: the server's answer is not that of the script: %T", key, answer)
}

func text(v any) string {
	switch v := v.(type) {
	case string:
		return v
	case []byte:
		return string(v)
	}
	return ""
}
