package guard_test

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/rueidis"

	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/internal/testserver"
)

// byGoRedis and byRueidis are what a program writes for its client.
func byGoRedis(client redis.UniversalClient) guard.Redis {
	return func(ctx context.Context, script string, keys, args []string) (any, error) {
		plain := make([]any, len(args))
		for i, arg := range args {
			plain[i] = arg
		}
		return client.Eval(ctx, script, keys, plain...).Result()
	}
}

func byRueidis(client rueidis.Client) guard.Redis {
	return func(ctx context.Context, script string, keys, args []string) (any, error) {
		return client.Do(ctx, client.B().Eval().Script(script).Numkeys(int64(len(keys))).Key(keys...).Arg(args...).Build()).ToAny()
	}
}

// server is one of several that the guard must work on, with the names of its
// keys.
type redisServer struct {
	client redis.UniversalClient
	guard.Redis
	prefix string
}

// Raise adds the prefix, so that tests share a server. Names that are refused, and
// the longest, stay as they are.
func (s redisServer) Raise(ctx context.Context, resource string, p guard.Pass) error {
	if resource == "" || len(resource) > 100 {
		return s.Redis.Raise(ctx, resource, p)
	}
	err := s.Redis.Raise(ctx, s.prefix+resource, p)
	if stale, ok := errors.AsType[*guard.StaleError](err); ok {
		stale.Resource = strings.TrimPrefix(stale.Resource, s.prefix)
	}
	return err
}

func eachRedis(t *testing.T, f func(t *testing.T, s redisServer)) {
	t.Helper()
	single := func(t *testing.T) []string { return []string{testserver.SharedRedis(t).Addr} }
	cluster := func(t *testing.T) []string { return testserver.SharedRedisCluster(t).Addrs() }
	for name, c := range map[string]struct {
		addrs   func(t *testing.T) []string
		rueidis bool
	}{
		"miniredis":         {addrs: func(t *testing.T) []string { return []string{miniredis.RunT(t).Addr()} }},
		"go-redis":          {addrs: single},
		"rueidis":           {addrs: single, rueidis: true},
		"go-redis, cluster": {addrs: cluster},
		"rueidis, cluster":  {addrs: cluster, rueidis: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addrs := c.addrs(t)
			client := redis.NewUniversalClient(&redis.UniversalOptions{Addrs: addrs})
			t.Cleanup(func() { client.Close() })
			s := redisServer{client: client, Redis: byGoRedis(client), prefix: rand.Text() + ":"}
			if c.rueidis {
				r, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: addrs})
				if err != nil {
					t.Fatal(err)
				}
				t.Cleanup(r.Close)
				s.Redis = byRueidis(r)
			}
			f(t, s)
		})
	}
}

func TestRedis(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, s redisServer) { conform(t, s, "redis") })
}

func TestRedisDo(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, s redisServer) {
		ctx := t.Context()
		for _, key := range []string{"account/7", "{user}.cart", "{user}", "a{b", "é"} {
			key = s.prefix + key
			if v, err := s.Do(ctx, key, pass(5, "a"), "SET", "x"); err != nil || v != "OK" {
				t.Errorf("%q: set: %v, %v", key, v, err)
			}
			if v, err := s.Do(ctx, key, pass(5, "a"), "APPEND", "y"); err != nil || v != int64(2) {
				t.Errorf("%q: append: %v, %v", key, v, err)
			}
			if v, err := s.Do(ctx, key, pass(6, "b"), "GET"); err != nil || v != "xy" {
				t.Errorf("%q: get: %v, %v", key, v, err)
			}
			if _, err := s.Do(ctx, key, pass(5, "a"), "SET", "stale"); !errors.Is(err, guard.ErrStale) {
				t.Errorf("%q: 5 after 6: %v", key, err)
			}
			if v, err := s.client.Get(ctx, key).Result(); err != nil || v != "xy" {
				t.Errorf("%q: a refused write has changed it: %q, %v", key, v, err)
			}
			if v, err := s.Do(ctx, key, pass(7, "b"), "DEL"); err != nil || v != int64(1) {
				t.Errorf("%q: del: %v, %v", key, v, err)
			}
			if v, err := s.Do(ctx, key, pass(7, "b"), "GET"); err != nil || v != nil {
				t.Errorf("%q: get what is not there: %v, %v", key, v, err)
			}
			if _, err := s.Do(ctx, key, pass(6, "b"), "SET", "stale"); !errors.Is(err, guard.ErrStale) {
				t.Errorf("%q: deleted, and a stale write brings it back: %v", key, err)
			}
		}
		// A failing command is not a refusal.
		key := s.prefix + "list"
		if _, err := s.Do(ctx, key, pass(5, "a"), "RPUSH", "x"); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Do(ctx, key, pass(5, "a"), "INCR"); err == nil || errors.Is(err, guard.ErrStale) || !strings.Contains(err.Error(), "WRONGTYPE") {
			t.Errorf("INCR of a list: %v", err)
		}
	})
}

// The check and the write are one step. Writers on many connections.
func TestRedisInterleaved(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, s redisServer) {
		interleave(t, &list{redisServer: s, key: s.prefix + "list"}, 8, 60)
	})
}

// list is a resource on a server.
type list struct {
	redisServer
	key string
}

func (l *list) write(ctx context.Context, p guard.Pass, between func()) error {
	between()
	_, err := l.Do(ctx, l.key, p, "RPUSH", strconv.FormatInt(p.Token, 10))
	return err
}

func (l *list) history(ctx context.Context) (h []int64, err error) {
	texts, err := l.client.LRange(ctx, l.key, 0, -1).Result()
	for _, text := range texts {
		n, bad := strconv.ParseInt(text, 10, 64)
		err = errors.Join(err, bad)
		h = append(h, n)
	}
	return h, err
}

// Planted: raise, then write, in two steps.
func TestRedisInTwoStepsIsCaught(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, s redisServer) {
		mustBreak(t, &twoSteps{list{redisServer: s, key: s.prefix + "list"}})
	})
}

type twoSteps struct{ list }

func (l *twoSteps) write(ctx context.Context, p guard.Pass, between func()) error {
	if err := l.Redis.Raise(ctx, l.key, p); err != nil {
		return err
	}
	between()
	return l.client.RPush(ctx, l.key, p.Token).Err()
}

// A key that is not a mark is not changed, whatever it is.
func TestRedisMarkIsSomethingElse(t *testing.T) {
	t.Parallel()
	eachRedis(t, func(t *testing.T, s redisServer) {
		for i, value := range []string{"", "x", "7", "-7 a", "07 a", " 7 a", "7.5 a"} {
			key := fmt.Sprintf("%sother%d", s.prefix, i)
			mark, err := guard.RedisMark(key)
			if err != nil {
				t.Fatal(err)
			}
			if err := s.client.Set(t.Context(), mark, value, 0).Err(); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Do(t.Context(), key, pass(9, "a"), "SET", "x"); err == nil || errors.Is(err, guard.ErrStale) {
				t.Errorf("a mark %q: %v", value, err)
			}
			if v, _ := s.client.Get(t.Context(), mark).Result(); v != value {
				t.Errorf("a mark %q became %q", value, v)
			}
		}
		for _, token := range []string{"", "x", "0", "-1", "1e3", " 7"} {
			if _, err := s.Redis(t.Context(), guard.RedisScript, []string{s.prefix + "mark"}, []string{token, "a"}); err == nil {
				t.Errorf("the script takes the token %q", token)
			}
		}
	})
}

func TestRedisMark(t *testing.T) {
	t.Parallel()
	seen := make(map[string]string)
	for key, want := range map[string]string{
		"k": "fence:{k}", "{k": "fence:{{k}", "{k}": "fence:{k}:{k}", "a{k}b": "fence:{k}:a{k}b", "{k}b}": "fence:{k}:{k}b}", "a{b{c}": "fence:{b{c}:a{b{c}",
		"}{k}": "fence:{k}:}{k}", "k}": "", "{}k": "",
	} {
		got, err := guard.RedisMark(key)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("%q: %q, %v; want %q", key, got, err, want)
		}
		if other, dup := seen[got]; dup && got != "" {
			t.Errorf("%q and %q have the mark %q", key, other, got)
		}
		seen[got] = key
	}
}

// Different keys never share a mark, and a mark is on the slot of its key.
func FuzzRedisMark(f *testing.F) {
	f.Add("k", "{k}")
	f.Add("{a}:b", "a")
	f.Add("{k", "a{k}b")
	f.Add("}{k}", "{}")
	f.Fuzz(func(t *testing.T, a, b string) {
		ma, errA := guard.RedisMark(a)
		mb, errB := guard.RedisMark(b)
		if errA == nil && errB == nil && (ma == mb) != (a == b) {
			t.Errorf("%q and %q have the marks %q and %q", a, b, ma, mb)
		}
		if errA == nil && a != "" && hashed(ma) != hashed(a) {
			t.Errorf("%q is hashed by %q, its mark %q by %q", a, hashed(a), ma, hashed(ma))
		}
	})
}

// hashed is the part of a key that decides its slot, by the Cluster specification.
func hashed(key string) string {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			return tag
		}
	}
	return key
}

// A client like redigo answers with bytes; anything but an answer of the script is
// an error.
func TestRedisAnswers(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		answer any
		stale  bool
		ok     bool
	}{
		{answer: []any{[]byte("done")}, ok: true},
		{answer: []any{[]byte("stale"), []byte("7")}, stale: true},
		{answer: []any{"stale"}},
		{answer: []any{"stale", "x"}},
		{answer: []any{}},
		{answer: nil},
		{answer: "done"},
	} {
		r := guard.Redis(func(context.Context, string, []string, []string) (any, error) { return c.answer, nil })
		err := r.Raise(t.Context(), "r", pass(5, "a"))
		if (err == nil) != c.ok || errors.Is(err, guard.ErrStale) != c.stale {
			t.Errorf("%q: %v", c.answer, err)
		}
	}
	if _, err := os.Stat("fence.lua"); err != nil || !strings.Contains(guard.RedisScript, "redis.call") {
		t.Errorf("the script: %v", err)
	}
}
