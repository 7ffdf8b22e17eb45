package locks

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/testserver"
)

func etcdctl(ctx context.Context, t *testing.T, server *testserver.EtcdServer, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, testserver.EtcdCtl(t), append([]string{"--endpoints", server.Addr}, args...)...)
	cmd.Env = append(os.Environ(), "ETCDCTL_API=3")
	return cmd
}

// Several processes of "etcdctl lock" and several of ours lock the same key: no update
// is lost, and every process is served. A machine that stops for longer than a lease
// lives ends it, and then nothing was shown.
func TestEtcdctlExcludesAndIsExcluded(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.EtcdCtl(t)
	server := testserver.SharedEtcd(t)
	for range 3 {
		err := takeTurns(t, server)
		if !errors.Is(err, baton.ErrLost) {
			if err != nil {
				t.Error(err)
			}
			return
		}
		t.Log(err)
	}
	t.Error("leases were lost in each of three runs")
}

// takeTurns returns what went wrong, and baton.ErrLost if a lease was lost.
func takeTurns(t *testing.T, server *testserver.EtcdServer) error {
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	var mu sync.Mutex
	var wrong []error
	complain := func(err error) bool {
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			wrong = append(wrong, err)
		}
		return err != nil
	}
	s := section{t.TempDir()}
	const each = 15
	var ours, theirs [2]int
	var their, our sync.WaitGroup
	for i := range theirs {
		their.Go(func() {
			for range each {
				if out, err := etcdctl(ctx, t, server, "lock", "/interop/a", "--", "sh", "-c", s.shell()).CombinedOutput(); err != nil {
					complain(fmt.Errorf("etcdctl lock: %w\n%s", err, out))
					return
				}
				theirs[i]++
			}
		})
	}
	// Ours go on until theirs are done, so that both contend all the time.
	working, done := context.WithCancel(ctx)
	defer done()
	for i := range ours {
		locks := newLocker(t, "etcd://"+server.Addr+"//interop", baton.Config{TTL: 5 * time.Second})
		our.Go(func() {
			for working.Err() == nil {
				lease, err := locks.Lock(ctx, "a")
				if complain(err) {
					return
				}
				complain(s.run())
				complain(lease.Unlock())
				ours[i]++
			}
		})
	}
	their.Wait()
	done()
	our.Wait()
	total := 0
	for _, n := range append(ours[:], theirs[:]...) {
		if n < each {
			complain(fmt.Errorf("one was served %d times, want at least %d", n, each))
		}
		total += n
	}
	if got, err := s.count(); err != nil || got != total {
		complain(fmt.Errorf("the counter says %d after %d sections (%w)", got, total, err))
	}
	if text, err := os.ReadFile(s.path("overlaps")); !errors.Is(err, fs.ErrNotExist) {
		complain(fmt.Errorf("a process of theirs met another: %s (%w)", text, err))
	}
	t.Logf("ours %v, theirs %v", ours, theirs)
	return errors.Join(wrong...)
}

// Readers of ours keep etcdctl out, as its lock has no readers.
func TestEtcdctlWaitsForReaders(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.EtcdCtl(t)
	server := testserver.SharedEtcd(t)
	locks := newLocker(t, "etcd://"+server.Addr+"//interop", baton.Config{})
	var readers []*baton.Lease
	for range 2 {
		lease, err := locks.Lock(t.Context(), "r", baton.Shared())
		if err != nil {
			t.Fatal(err)
		}
		readers = append(readers, lease)
	}
	theirs := etcdctl(t.Context(), t, server, "lock", "/interop/r", "--", "true")
	var out bytes.Buffer
	theirs.Stdout, theirs.Stderr = &out, &out
	if err := theirs.Start(); err != nil {
		t.Fatal(err)
	}
	awaitWaiters(t, locks, "r", 1)
	for i, lease := range readers {
		info, err := locks.Inspect(t.Context(), "r")
		if err != nil || len(info.Holders) != len(readers)-i || len(info.Waiters) != 1 {
			t.Errorf("%d holders and %d waiters (%v), want %d and 1", len(info.Holders), len(info.Waiters), err, len(readers)-i)
		}
		if err := lease.Unlock(); err != nil {
			t.Error(err)
		}
	}
	if err := theirs.Wait(); err != nil {
		t.Errorf("etcdctl lock: %v\n%s", err, out.String())
	}
}

// A process that is killed with the lock frees it for the other kind.
func TestEtcdctlAndCrashes(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	testserver.EtcdCtl(t)
	server := testserver.SharedEtcd(t)
	url := "etcd://" + server.Addr + "//interop"
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	locks := newLocker(t, url, baton.Config{TTL: 5 * time.Second})

	// Theirs dies.
	theirs := etcdctl(ctx, t, server, "lock", "--ttl=2", "/interop/crash")
	out, err := theirs.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := theirs.Start(); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("etcdctl said %q: %v", line, err)
	}
	_, err = locks.TryLock(ctx, "crash")
	if held, ok := errors.AsType[*baton.HeldError](err); !ok || !held.Foreign {
		t.Errorf("while etcdctl holds: %v, want a *HeldError about a foreign holder", err)
	}
	if err := theirs.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Wait() // killed
	lease, err := locks.Lock(ctx, "crash")
	if err != nil {
		t.Fatal(err)
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}

	// Ours dies.
	ours := startWorker(t, "ours", url, "crash", t.TempDir(), "2s", "hold")
	ours.says(t)
	waits := etcdctl(ctx, t, server, "lock", "/interop/crash", "--", "true")
	if err := waits.Start(); err != nil {
		t.Fatal(err)
	}
	awaitWaiters(t, locks, "crash", 1)
	if err := ours.cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	if err := waits.Wait(); err != nil {
		t.Errorf("etcdctl lock: %v", err)
	}
}
