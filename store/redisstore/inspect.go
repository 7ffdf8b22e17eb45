package redisstore

import (
	"cmp"
	"context"
	"errors"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// Inspect implements driver.Inspector.
func (s *Store) Inspect(ctx context.Context, key string) (driver.KeyInfo, error) {
	n, err := s.checked(key)
	if err != nil {
		return driver.KeyInfo{}, err
	}
	answer, err := s.run(ctx, inspectScript, inspectKeys(n), nil)
	if err != nil {
		return driver.KeyInfo{}, err
	}
	return keyInfo(key, answer)
}

func (s *Store) checked(key string) (lockNames, error) {
	if err := check.Key(key); err != nil {
		return lockNames{}, err
	}
	return s.names.of(key)
}

func inspectKeys(n lockNames) []string {
	return []string{n.lock, n.queue(), n.waiters(), n.shared(), n.info()}
}

// keyInfo parses the answer of the script inspect. It leaves out expired holders and
// waiters.
func keyInfo(key string, answer any) (driver.KeyInfo, error) {
	info := driver.KeyInfo{Key: key}
	a := list(answer)
	if len(a) < 8 {
		return info, strange(inspectScript, answer)
	}
	now, state, val, left := number(a[0]), text(a[1]), text(a[2]), number(a[3])
	switch state {
	case "other":
		return info, notLock(key, val)
	case "whole", "foreign":
		if left == -1 {
			return info, notLock(key, "string")
		}
		h := holder(val, "", now)
		h.Remaining = time.Duration(left) * time.Millisecond
		h.Grant = driver.GrantOf(holderID(val))
		info.Holders = append(info.Holders, h)
	case "shared":
		known := pairs(a[7])
		deadlines := list(a[6])
		for i := 0; i+1 < len(deadlines); i += 2 {
			remaining := score(deadlines[i+1]) - now
			if remaining <= 0 {
				continue
			}
			h := holder(val, known[text(deadlines[i])], now)
			h.Remaining = time.Duration(remaining) * time.Microsecond
			h.Grant = driver.GrantOf(text(deadlines[i]))
			info.Holders = append(info.Holders, h)
		}
		slices.SortFunc(info.Holders, func(a, b driver.HolderInfo) int { return cmp.Compare(a.Token, b.Token) })
	}
	later := pairs(a[5])
	for _, e := range list(a[4]) {
		parts := strings.SplitN(text(e), "\t", 6)
		if len(parts) < 6 {
			continue
		}
		joined := number(parts[0])
		if max(joined+driver.WaiterTTL.Microseconds(), number(later[parts[1]])) < now {
			continue
		}
		w := driver.WaiterInfo{Owner: parts[5], Age: max(time.Duration(now-joined)*time.Microsecond, 0)}
		w.Weight, w.Capacity = parseWant(parts[2])
		info.Waiters = append(info.Waiters, w)
	}
	return info, nil
}

// List implements driver.Inspector. It leaves out locks of other programs: they cannot be
// told from other strings. It walks all keys of the database by SCAN.
func (s *Store) List(ctx context.Context, prefix string) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		seen := map[string]bool{} // SCAN may repeat names
		show := func(keys []string) error {
			infos, err := s.inspectAll(ctx, keys)
			if err != nil {
				return err
			}
			for _, info := range infos {
				if len(info.Holders)+len(info.Waiters) > 0 && !yield(info, nil) {
					return errStop
				}
			}
			return nil
		}
		fresh := func(key string) bool {
			if !strings.HasPrefix(key, prefix) || seen[key] {
				return false
			}
			seen[key] = true
			return true
		}
		err := s.eachPrimary(ctx, func(n wire.Node) error {
			// Queues first: their locks may be free for a moment during the second walk.
			err := scan(ctx, n, escapeGlob(s.names.own+"q:")+"*", "list", func(names []string) error {
				var keys []string
				for _, name := range names {
					if key, ok := s.names.keyOf("q:", name); ok && fresh(key) {
						keys = append(keys, key)
					}
				}
				return show(keys)
			})
			if err != nil {
				return err
			}
			return scan(ctx, n, escapeGlob(s.names.prefix+prefix)+"*", "string", func(names []string) error {
				names, err := ours(ctx, n, slices.DeleteFunc(names, s.besideLocks))
				if err != nil {
					return err
				}
				var keys []string
				for _, name := range names {
					if key := strings.TrimPrefix(name, s.names.prefix); fresh(key) {
						keys = append(keys, key)
					}
				}
				return show(keys)
			})
		})
		if err != nil && err != errStop {
			yield(driver.KeyInfo{}, err)
		}
	}
}

// besideLocks reports whether a name is that of other data of the store, and not of a
// lock.
func (s *Store) besideLocks(name string) bool {
	_, err := s.names.of(strings.TrimPrefix(name, s.names.prefix))
	return err != nil
}

// errStop ends a walk whose reader has stopped.
var errStop = errors.New("stop")

func (s *Store) eachPrimary(ctx context.Context, f func(wire.Node) error) error {
	if s.closed.Load() {
		return driver.ErrClosed
	}
	var own error
	err := s.client.Primaries(ctx, func(n wire.Node) error {
		own = f(n)
		return own
	})
	if own != nil || err == nil {
		return own
	}
	return failure(err)
}

// inspectAll inspects keys in one round trip. It leaves out keys that are no longer
// locks.
func (s *Store) inspectAll(ctx context.Context, keys []string) ([]driver.KeyInfo, error) {
	var infos []driver.KeyInfo
	var calls []wire.Call
	var of []string
	for _, key := range keys {
		if n, err := s.checked(key); err == nil {
			calls = append(calls, wire.Call{Script: inspectScript, Keys: inspectKeys(n)})
			of = append(of, key)
		}
	}
	if calls == nil {
		return nil, nil
	}
	for i, r := range s.runAll(ctx, calls) {
		if r.Err != nil {
			return nil, r.Err
		}
		if info, err := keyInfo(of[i], r.Value); err == nil {
			infos = append(infos, info)
		}
	}
	return infos, nil
}

// scan walks the names on one server that match pattern.
func scan(ctx context.Context, n wire.Node, pattern, kind string, f func(names []string) error) error {
	for cursor := "0"; ; {
		answer, err := n.Do(ctx, "SCAN", cursor, "MATCH", pattern, "COUNT", "1000", "TYPE", kind)
		if err != nil {
			return failure(err)
		}
		a := list(answer)
		if len(a) != 2 {
			return failure(&wire.ServerError{Text: "ERR SCAN answered something strange"})
		}
		var names []string
		for _, name := range list(a[1]) {
			names = append(names, text(name))
		}
		if len(names) > 0 {
			if err := f(names); err != nil {
				return err
			}
		}
		if cursor = text(a[0]); cursor == "0" {
			return nil
		}
	}
}

// scanBeside walks the names of a kind, such as "o:", whose keys begin with prefix, on
// all primaries. SCAN reads every name of the database, a thousand in each call.
func (s *Store) scanBeside(ctx context.Context, kind, of, prefix string, f func(names []string) error) error {
	// The name contains the key. keyOf checks the rest of a character that prefix cuts.
	whole, _, _ := strings.Cut(strings.ToValidUTF8(prefix, "\x00"), "\x00")
	pattern := escapeGlob(s.names.own+kind) + "*" + escapeGlob(whole) + "*"
	return s.eachPrimary(ctx, func(n wire.Node) error {
		return scan(ctx, n, pattern, of, func(names []string) error {
			return f(slices.DeleteFunc(names, func(name string) bool {
				key, ok := s.names.keyOf(kind, name)
				return !ok || !strings.HasPrefix(key, prefix)
			}))
		})
	})
}

// ours picks the names whose values begin like one of Baton's, without reading long
// values.
func ours(ctx context.Context, n wire.Node, names []string) ([]string, error) {
	commands := make([][]string, len(names))
	for i, name := range names {
		commands[i] = []string{"GETRANGE", name, "0", "2"}
	}
	var mine []string
	for i, r := range n.DoAll(ctx, commands) {
		if r.Err != nil {
			if _, changed := r.Err.(*wire.ServerError); changed {
				continue // another type by now
			}
			return nil, failure(r.Err)
		}
		if text(r.Value) == "b1:" {
			mine = append(mine, names[i])
		}
	}
	return mine, nil
}

// escapeGlob makes a pattern that matches only s.
func escapeGlob(s string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`).Replace(s)
}

// Break implements driver.Inspector. It also breaks the locks of other programs.
func (s *Store) Break(ctx context.Context, key string, grants ...string) (ended int, err error) {
	n, err := s.checked(key)
	if err != nil {
		return 0, err
	}
	args := []string{s.everyone}
	if len(grants) > 0 {
		// The script compares the IDs of these grants, so a later grant stays.
		answer, err := s.run(ctx, inspectScript, inspectKeys(n), nil)
		if err != nil {
			return 0, err
		}
		for _, id := range holderIDs(answer) {
			if driver.Among(driver.GrantOf(id), grants) {
				args = append(args, id)
			}
		}
		if len(args) == 1 {
			return 0, nil
		}
	}
	answer, err := s.run(ctx, breakScript, n.full(), args)
	if err != nil {
		return 0, err
	}
	a := list(answer)
	if len(a) == 0 {
		return 0, strange(breakScript, answer)
	}
	if count := number(a[0]); count >= 0 {
		return int(count), nil
	}
	return 0, notLock(key, text(a[1]))
}

// holderID is the ID in the value of a lock with one holder. For a lock of another
// program it is the whole value.
func holderID(value string) string {
	if own, ok := strings.CutPrefix(value, "b1:"); ok {
		id, _, _ := strings.Cut(own, ":")
		return id
	}
	return value
}

// holderIDs are the IDs in the answer of the script inspect.
func holderIDs(answer any) (ids []string) {
	a := list(answer)
	if len(a) < 8 {
		return nil
	}
	switch text(a[1]) {
	case "whole", "foreign":
		return []string{holderID(text(a[2]))}
	case "shared":
		for id := range pairs(a[6]) {
			ids = append(ids, id)
		}
	}
	return ids
}

// score parses a deadline: a sorted set may print it with an exponent.
func score(v any) int64 {
	f, _ := strconv.ParseFloat(text(v), 64)
	return int64(f)
}

// pairs parses a hash.
func pairs(v any) map[string]string {
	m := map[string]string{}
	l := list(v)
	for i := 0; i+1 < len(l); i += 2 {
		m[text(l[i])] = text(l[i+1])
	}
	return m
}
