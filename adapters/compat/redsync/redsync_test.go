package redsync_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	original "github.com/go-redsync/redsync/v4"
	originalgoredis "github.com/go-redsync/redsync/v4/redis/goredis/v9"
	goredislib "github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/compat/redsync"
	"github.com/batonhq/baton/adapters/compat/redsync/redis/goredis/v9"
	"github.com/batonhq/baton/internal/compattest"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

var library = compattest.Library{
	Path:    "github.com/go-redsync/redsync/v4",
	Ours:    "github.com/batonhq/baton/adapters/compat/redsync",
	Package: ".",
}

func TestProgramsOfTheOriginalRun(t *testing.T) {
	testserver.Long(t)
	if testing.Short() {
		t.Skip("it compiles beside the package, and the go command does not do so in its cache of modules, where package fetched runs this")
	}
	testserver.NeedRedis(t)
	t.Parallel()
	addr := testserver.SharedRedis(t).Addr
	library.RunsProgram(t, library.Block(t, "README.md"), "localhost:6379", addr)
	// The example does the same with a server that it starts by a library that this module does not
	// have. To link it takes seconds.
	library.Compiles(t, library.Read(t, "examples/goredis/v9/main.go"), "\n\t\"github.com/stvp/tempredis\"", "",
		"server, err := tempredis.Start(tempredis.Config{})\n\tif err != nil {\n\t\tpanic(err)\n\t}\n\tdefer server.Term()\n", "",
		`"unix"`, `"tcp"`, "server.Socket()", `"`+addr+`"`)
}

func TestAPIIsThatOfTheOriginal(t *testing.T) {
	t.Parallel()
	library.HasAllNames(t, 40)
}

func clients(t *testing.T) (*goredislib.Client, *redsync.Redsync, *original.Redsync) {
	t.Helper()
	testserver.NeedRedis(t)
	t.Parallel()
	c := goredislib.NewClient(&goredislib.Options{Addr: testserver.SharedRedis(t).Addr})
	t.Cleanup(func() { c.Close() })
	return c, redsync.New(goredis.NewPool(c)), original.New(originalgoredis.NewPool(c))
}

func lock(t *testing.T, m *redsync.Mutex) {
	t.Helper()
	if err := m.Lock(); err != nil {
		t.Fatal(err)
	}
}

func TestEachSeesTheOther(t *testing.T) {
	_, ours, theirs := clients(t)
	m, o := ours.NewMutex("see"), theirs.NewMutex("see")
	lock(t, m)
	if err := o.TryLock(); err == nil {
		t.Fatal("the original locked what this package has")
	}
	var taken *redsync.ErrTaken
	if err := ours.NewMutex("see").TryLock(); !errors.As(err, &taken) || len(taken.Nodes) != 1 || taken.Nodes[0] != 0 {
		t.Fatalf("a second mutex: %v", err)
	}
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if err := o.Lock(); err != nil {
		t.Fatal(err)
	}
	if err := m.TryLock(); !errors.As(err, &taken) {
		t.Fatalf("what the original has: %v", err)
	}
	if ok, err := o.Unlock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
}

func TestLockWaits(t *testing.T) {
	_, ours, theirs := clients(t)
	o := theirs.NewMutex("waits")
	if err := o.Lock(); err != nil {
		t.Fatal(err)
	}
	m := ours.NewMutex("waits", redsync.WithRetryDelayFunc(func(tries int) time.Duration {
		if tries == 3 {
			if ok, err := o.Unlock(); !ok || err != nil {
				t.Error(ok, err)
			}
		}
		return time.Millisecond
	}))
	lock(t, m)
	if m.FencingToken() <= 0 || m.Value() == "" || m.Name() != "waits" {
		t.Errorf("token %d, value %q, name %q", m.FencingToken(), m.Value(), m.Name())
	}
	if left := time.Until(m.Until()); left > 8*time.Second-80*time.Millisecond || left < 6*time.Second {
		t.Errorf("it lasts for %v", left)
	}
	tries := 0
	var taken *redsync.ErrTaken
	other := ours.NewMutex("waits", redsync.WithTries(3), redsync.WithRetryDelayFunc(func(int) time.Duration {
		tries++
		return time.Millisecond
	}))
	if err := other.Lock(); !errors.As(err, &taken) || tries != 2 {
		t.Errorf("%v after %d waits", err, tries)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := other.LockContext(ctx); !errors.Is(err, redsync.ErrFailed) {
		t.Errorf("an ended context: %v", err)
	}
}

func TestEndedLockSaysSo(t *testing.T) {
	c, ours, _ := clients(t)
	for name, end := range map[string]func(*redsync.Mutex) error{
		"unlocked": func(m *redsync.Mutex) error { _, err := m.Unlock(); return err },
		"deleted":  func(m *redsync.Mutex) error { return c.Del(t.Context(), m.Name()).Err() },
	} {
		m := ours.NewMutex("ended/" + name)
		lock(t, m)
		if ok, err := m.Valid(); !ok || err != nil {
			t.Errorf("%s: valid %v, %v", name, ok, err)
		}
		if err := end(m); err != nil {
			t.Fatal(err)
		}
		if ok, err := m.Valid(); ok || err != nil {
			t.Errorf("%s: valid %v, %v", name, ok, err)
		}
		var taken *redsync.ErrTaken
		if ok, err := m.Extend(); ok || !errors.As(err, &taken) {
			t.Errorf("%s: extend %v, %v", name, ok, err)
		}
		if ok, err := m.Unlock(); ok || !errors.Is(err, redsync.ErrLockAlreadyExpired) {
			t.Errorf("%s: unlock %v, %v", name, ok, err)
		}
	}
	if ok, err := ours.NewMutex("never").Valid(); ok || err != nil {
		t.Errorf("never locked: %v, %v", ok, err)
	}
}

func TestExtend(t *testing.T) {
	c, ours, theirs := clients(t)
	m := ours.NewMutex("extend", redsync.WithExpiry(10*time.Second), redsync.WithSetNXOnExtend())
	lock(t, m)
	token := m.FencingToken()
	if err := c.PExpire(t.Context(), "extend", 5*time.Second).Err(); err != nil {
		t.Fatal(err)
	}
	if ok, err := m.Extend(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if left := c.PTTL(t.Context(), "extend").Val(); left < 8*time.Second || m.FencingToken() != token {
		t.Errorf("the server keeps it for %v, token %d, before %d", left, m.FencingToken(), token)
	}
	// It was lost, and nobody has it.
	if err := c.Del(t.Context(), "extend").Err(); err != nil {
		t.Fatal(err)
	}
	if ok, err := m.Extend(); !ok || err != nil || m.FencingToken() <= token {
		t.Fatalf("%v, %v, token %d, before %d", ok, err, m.FencingToken(), token)
	}
	if ok, err := m.Valid(); !ok || err != nil {
		t.Errorf("valid: %v, %v", ok, err)
	}
	// It was lost, and somebody has it.
	if err := c.Del(t.Context(), "extend").Err(); err != nil {
		t.Fatal(err)
	}
	o := theirs.NewMutex("extend")
	if err := o.Lock(); err != nil {
		t.Fatal(err)
	}
	var taken *redsync.ErrTaken
	if ok, err := m.Extend(); ok || !errors.As(err, &taken) {
		t.Errorf("%v, %v", ok, err)
	}
	if ok, err := m.Unlock(); ok || !errors.Is(err, redsync.ErrLockAlreadyExpired) {
		t.Errorf("unlock: %v, %v", ok, err)
	}
	var theirTaken *original.ErrTaken
	if ok, err := theirs.NewMutex("extend", original.WithValue("another")).Unlock(); ok || !errors.As(err, &theirTaken) {
		t.Errorf("unlock of the original: %v, %v", ok, err)
	}
	if ok, err := o.Unlock(); !ok || err != nil {
		t.Error(ok, err)
	}
}

// A value that is generated twice does not let two hold the lock, and a value unlocks elsewhere.
func TestValues(t *testing.T) {
	_, ours, _ := clients(t)
	same := redsync.WithGenValueFunc(func() (string, error) { return "host 7, any text", nil })
	m := ours.NewMutex("values", same)
	lock(t, m)
	if !strings.HasPrefix(m.Value(), "host 7, any text.") {
		t.Errorf("the value is %q", m.Value())
	}
	var taken *redsync.ErrTaken
	if err := ours.NewMutex("values", same).TryLock(); !errors.As(err, &taken) {
		t.Fatalf("the same value: %v", err)
	}
	for value, want := range map[string]error{"": redsync.ErrLockAlreadyExpired, "host 7, any text": redsync.ErrLockAlreadyExpired, m.Value(): nil} {
		ok, err := ours.NewMutex("values", redsync.WithValue(value)).Extend()
		if ok != (want == nil) {
			t.Errorf("extend with %q: %v, %v", value, ok, err)
		}
	}
	elsewhere := ours.NewMutex("values", redsync.WithValue(m.Value()))
	if ok, err := elsewhere.Unlock(); !ok || err != nil {
		t.Fatal(ok, err)
	}
	if ok, err := m.Unlock(); ok || !errors.Is(err, redsync.ErrLockAlreadyExpired) {
		t.Errorf("unlocked elsewhere: %v, %v", ok, err)
	}
	broken := errors.New("no randomness")
	if err := ours.NewMutex("values", redsync.WithGenValueFunc(func() (string, error) { return "", broken })).Lock(); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
}

func TestRefusals(t *testing.T) {
	c, ours, _ := clients(t)
	down := goredislib.NewClient(&goredislib.Options{Addr: testserver.FreeAddr(t), MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { down.Close() })
	for name, m := range map[string]*redsync.Mutex{
		"short expiry": ours.NewMutex("refuse", redsync.WithExpiry(time.Millisecond)),
		"no name":      ours.NewMutex(""),
		"no pools":     redsync.New().NewMutex("refuse"),
		"two pools":    redsync.New(goredis.NewPool(c), goredis.NewPool(client(t, 0))).NewMutex("refuse"),
		"one twice":    redsync.New(goredis.NewPool(c), goredis.NewPool(client(t, 0)), goredis.NewPool(c)).NewMutex("refuse", redsync.WithTries(1)),
		"no server":    redsync.New(goredis.NewPool(down)).NewMutex("refuse", redsync.WithTries(2), redsync.WithRetryDelay(time.Millisecond)),
		"young":        redsync.New(goredis.NewPool(c), goredis.NewPool(client(t, 0)), goredis.NewPool(client(t, 1))).NewMutex("refuse", redsync.WithTries(1)),
	} {
		var failed *redsync.RedisError
		if err := m.Lock(); !errors.As(err, &failed) {
			t.Errorf("%s: %v", name, err)
		}
		// What young servers granted is released in the background.
		for began := time.Now(); c.Exists(t.Context(), "refuse").Val() != 0; <-time.After(time.Millisecond) {
			if time.Since(began) > 5*time.Second {
				t.Fatalf("%s: a lock was left", name)
			}
		}
	}
}

// client is one of a server that has just been started.
func client(t *testing.T, i int) *goredislib.Client {
	c := goredislib.NewClient(&goredislib.Options{Addr: testserver.SharedRedisNodes(t)[i].Addr})
	t.Cleanup(func() { c.Close() })
	return c
}

func TestLease(t *testing.T) {
	_, ours, _ := clients(t)
	s, err := ours.Store()
	if err != nil {
		t.Fatal(err)
	}
	locks, err := baton.New(s, baton.Config{TTL: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	m := ours.NewMutex("lease")
	lock(t, m)
	lease, err := m.Attach(t.Context(), locks)
	if err != nil {
		t.Fatal(err)
	}
	if lease.Token() != m.FencingToken() {
		t.Errorf("tokens %d and %d", lease.Token(), m.FencingToken())
	}
	if ok, err := m.Unlock(); ok || !errors.Is(err, redsync.ErrLockAlreadyExpired) {
		t.Errorf("%v, %v", ok, err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
}

// A server that does not answer yet is tried again, as in the original.
func TestServerComesLater(t *testing.T) {
	c, _, _ := clients(t)
	proxy := faultproxy.New(t, c.Options().Addr)
	proxy.Refuse()
	late := goredislib.NewClient(&goredislib.Options{Addr: proxy.Addr, MaxRetries: -1, DialerRetries: 1})
	t.Cleanup(func() { late.Close() })
	m := redsync.New(goredis.NewPool(late)).NewMutex("later", redsync.WithRetryDelayFunc(func(tries int) time.Duration {
		if tries == 2 {
			proxy.Accept()
		}
		return time.Millisecond
	}))
	lock(t, m)
	if ok, err := m.Unlock(); !ok || err != nil {
		t.Error(ok, err)
	}
}
