package locks

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/go-redsync/redsync/v4"
	redsyncredis "github.com/go-redsync/redsync/v4/redis"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

// workerEnv makes a process of this test binary a worker: its value is whose
// lock it uses.
const workerEnv = "BATON_INTEROP_WORKER"

// workerMain is what a worker does. Its arguments are the store, the key, a
// directory, the TTL, and what to do: "hold" prints "held" when it has the lock and
// never releases it; a number is how often it enters the section, and 0 means until its
// input ends. It prints how often it did.
func workerMain(whose string, args []string) error {
	ctx := context.Background()
	url, key, dir := args[0], args[1], args[2]
	ttl, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	lock, err := map[string]func(context.Context, string, string, time.Duration) (locking, error){
		"ours": ourLock, "theirs": theirLock,
	}[whose](ctx, url, key, ttl)
	if err != nil {
		return err
	}
	if args[4] == "hold" {
		if _, err := lock(); err != nil {
			return err
		}
		fmt.Println("held")
		select {}
	}
	rounds, err := strconv.Atoi(args[4])
	if err != nil {
		return err
	}
	ended := make(chan struct{})
	if rounds == 0 {
		go func() {
			_, _ = io.Copy(io.Discard, os.Stdin) // however it ends
			close(ended)
		}()
	}
	n := 0
	for over := false; !over; {
		unlock, err := lock()
		if err != nil {
			return err
		}
		if err := (section{dir}).run(); err != nil {
			return err
		}
		if err := unlock(); err != nil {
			return err
		}
		n++
		// A Baton that unlocks grants the lock to a waiting Baton, so redsync finds it
		// free only when no Baton waits.
		select {
		case <-ended:
			over = true
		case <-time.After(20 * time.Millisecond):
			over = n == rounds
		}
	}
	fmt.Println("entered", n)
	return nil
}

// locking locks, and returns what unlocks.
type locking func() (unlock func() error, err error)

func ourLock(ctx context.Context, url, key string, ttl time.Duration) (locking, error) {
	store, err := open.Store(ctx, url)
	if err != nil {
		return nil, err
	}
	locks, err := baton.New(store, baton.Config{TTL: ttl})
	if err != nil {
		return nil, err
	}
	return func() (func() error, error) {
		lease, err := locks.Lock(ctx, key)
		if err != nil {
			return nil, err
		}
		return lease.Unlock, nil
	}, nil
}

// redlockURL is the store of Baton on several servers.
func redlockURL(t *testing.T) string {
	t.Helper()
	return "redlock://" + strings.Join(testserver.Addrs(testserver.SharedRedisNodes(t)), ",") + "?durable=true"
}

// redsync5 is redsync over the servers of such a URL.
func redsync5(url, key string, ttl time.Duration) *redsync.Mutex {
	addrs, _, _ := strings.Cut(strings.TrimPrefix(url, "redlock://"), "?")
	var pools []redsyncredis.Pool
	for addr := range strings.SplitSeq(addrs, ",") {
		pools = append(pools, goredis.NewPool(redis.NewClient(&redis.Options{Addr: addr})))
	}
	return redsync.New(pools...).NewMutex(key, redsync.WithExpiry(ttl), redsync.WithTries(1_000_000), redsync.WithRetryDelay(5*time.Millisecond))
}

func theirLock(ctx context.Context, url, key string, ttl time.Duration) (locking, error) {
	m := redsync5(url, key, ttl)
	return func() (func() error, error) {
		return func() error { return redsyncUnlock(m) }, m.LockContext(ctx)
	}, nil
}

type worker struct {
	cmd *exec.Cmd
	in  io.Closer
	out *bufio.Reader
}

func startWorker(t *testing.T, whose string, args ...string) *worker {
	t.Helper()
	cmd := exec.Command(os.Args[0], args...)
	cmd.Env = append(os.Environ(), workerEnv+"="+whose)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill() // it may have ended
		_ = cmd.Wait()         // and then it was waited for
	})
	return &worker{cmd, in, bufio.NewReader(out)}
}

// says reads the next line.
func (w *worker) says(t *testing.T) string {
	t.Helper()
	line, err := w.out.ReadString('\n')
	if err != nil {
		t.Fatalf("a worker said %q: %v", line, err)
	}
	return strings.TrimSpace(line)
}

func (w *worker) entered(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(strings.TrimPrefix(w.says(t), "entered "))
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Several processes of redsync and several of ours use one lock on five servers: no
// update is lost, and every process is served.
func TestRedsyncOnFiveServers(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const each, ttl = 15, "20s" // redsync does not renew
	url, dir := redlockURL(t), t.TempDir()
	var ours, theirs []*worker
	for range 2 {
		ours = append(ours, startWorker(t, "ours", url, t.Name(), dir, ttl, "0"))
		theirs = append(theirs, startWorker(t, "theirs", url, t.Name(), dir, ttl, strconv.Itoa(each)))
	}
	total, least := 0, each
	for _, w := range theirs {
		total += w.entered(t)
	}
	// Ours went on until theirs had done.
	for _, w := range ours {
		w.in.Close()
		n := w.entered(t)
		total, least = total+n, min(least, n)
	}
	if least < each/3 {
		t.Errorf("one of ours was served %d times beside %d of each of theirs", least, each)
	}
	if got, err := (section{dir}).count(); err != nil || got != total {
		t.Errorf("the counter says %d (%v) after %d sections", got, err, total)
	}
}

// A process that is killed with the lock frees it for the other kind after its TTL, and
// not before.
func TestRedsyncAndCrashesOnFiveServers(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	const ttl = 3 * time.Second
	url := redlockURL(t)
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	locks := newLocker(t, url, baton.Config{})

	key := t.Name() + "/theirs"
	began := time.Now()
	w := startWorker(t, "theirs", url, key, t.TempDir(), ttl.String(), "hold")
	w.says(t)
	var held *baton.HeldError
	if _, err := locks.TryLock(ctx, key); time.Since(began) < ttl && (!errors.As(err, &held) || !held.Foreign) {
		t.Errorf("while redsync holds: %v, want a *HeldError about a foreign holder", err)
	}
	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	lease, err := locks.Lock(ctx, key)
	if err != nil {
		t.Fatalf("redsync was killed: %v", err)
	}
	if d := time.Since(began); d < ttl {
		t.Errorf("free after %v, with a TTL of %v", d, ttl)
	}
	if redsync5(url, key, ttl).TryLockContext(ctx) == nil {
		t.Error("redsync locked what Baton holds")
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}

	key = t.Name() + "/ours"
	began = time.Now()
	w = startWorker(t, "ours", url, key, t.TempDir(), ttl.String(), "hold")
	w.says(t)
	if err := w.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	m := redsync5(url, key, ttl)
	if err := m.LockContext(ctx); err != nil {
		t.Fatalf("Baton was killed: %v", err)
	}
	if d := time.Since(began); d < ttl-ttl/100 {
		t.Errorf("free after %v, with a TTL of %v", d, ttl)
	}
	if _, err := m.UnlockContext(ctx); err != nil {
		t.Error(err)
	}
}
