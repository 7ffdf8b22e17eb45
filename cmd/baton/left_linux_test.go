package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// A command that baton may not signal, because it is root's, as under sudo: the
// lock stays with it until it has ended.
func TestLockIsKeptWithWhatCannotBeStopped(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name  string
		flags []string
		run   []string
		code  int
	}{
		{"max-hold", []string{"--max-hold", "2s"}, []string{"./helper", "rooted", "pid"}, exitKilled},
		{"left behind", nil, []string{"sh", "-c", "./helper rooted pid & until test -e pid; do :; done; exit 3"}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			flags := append([]string{"-b", "sqlite:x.db", "run", "--ttl", "3s", "--grace", "50ms"}, c.flags...)
			holder, said, end := nobodys(t, append(append(flags, "k", "--"), c.run...)...)
			awaitText(t, said, "baton may not signal it")
			awaitText(t, said, "the lock is kept until it has ended")
			another := func() *exec.Cmd { // of the same user: root opens no file of nobody's
				next := exec.Command(holder.Path, "-b", "sqlite:x.db", "run", "-n", "k", "--", "true")
				next.Dir, next.SysProcAttr = holder.Dir, holder.SysProcAttr
				return next
			}
			next := another()
			if out, err := next.CombinedOutput(); next.ProcessState.ExitCode() != exitNotAcquired {
				t.Errorf("while it runs, the next one ended with %v, want exit code %d:\n%s", err, exitNotAcquired, out)
			}
			end()
			if err := holder.Wait(); holder.ProcessState.ExitCode() != c.code {
				text, _ := os.ReadFile(said)
				t.Errorf("the holder ended with %v, want exit code %d:\n%s", err, c.code, text)
			}
			next = another()
			if out, err := next.CombinedOutput(); err != nil {
				t.Errorf("afterwards, the next one ended with %v:\n%s", err, out)
			}
		})
	}
}

// If the lease is lost then, baton does not remove it from the store: the next process
// gets the lock when the TTL is over, and not before.
func TestLossWithWhatCannotBeStopped(t *testing.T) {
	t.Parallel()
	const ttl = 26 * time.Second // a tenth of it is longer than baton tries to stop the command
	server := testserver.Redis(t)
	proxy := faultproxy.New(t, server.Addr)
	began := time.Now()
	holder, said, _ := nobodys(t, "-b", "redis://"+proxy.Addr, "run", "--ttl", ttl.String(), "--grace", "50ms", "k", "--", "./helper", "rooted", "pid")
	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	beats := filepath.Join(t.TempDir(), "beats")
	start(t, exec.Command("baton", "-b", "redis://"+server.Addr, "run", "k", "--", "helper", "beat", beats))
	awaitText(t, said, "baton may not signal it")
	proxy.Heal()
	awaitText(t, beats, "\n")
	if d := time.Since(began); d < ttl {
		t.Errorf("the next one got the lock %v after the holder was started, which may still run until %v", d, ttl)
	}
	if err := holder.Wait(); holder.ProcessState.ExitCode() != exitLost {
		text, _ := os.ReadFile(said)
		t.Errorf("the holder ended with %v, want exit code %d:\n%s", err, exitLost, text)
	}
}

// nobodys starts baton as a user who may not signal the process of "./helper rooted
// pid". end ends that process.
func nobodys(t *testing.T, args ...string) (holder *exec.Cmd, said string, end func()) {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("only root can make a command that other users may not signal")
	}
	const nobody = 65534
	dir, err := os.MkdirTemp("", "baton-left-") // not in a directory that others may not enter
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.Chown(dir, nobody, nobody); err != nil {
		t.Fatal(err)
	}
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Flags&unix.ST_NOSUID != 0 {
		t.Skipf("no set-user-ID files in %s, %v", dir, err)
	}
	for name, mode := range map[string]os.FileMode{"baton": 0o755, "helper": os.ModeSetuid | 0o755} {
		copyProgram(t, name, filepath.Join(dir, name), mode)
	}
	pid, said := filepath.Join(dir, "pid"), filepath.Join(dir, "said")
	errs, err := os.Create(said)
	if err != nil {
		t.Fatal(err)
	}
	defer errs.Close()
	holder = exec.Command(filepath.Join(dir, "baton"), args...)
	holder.Dir, holder.Stderr = dir, errs
	holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
	start(t, holder)
	awaitText(t, pid, "")
	left := pidIn(t, pid)
	end = sync.OnceFunc(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
	t.Cleanup(end)
	return holder, said, end
}

// copyProgram copies one that is in the path.
func copyProgram(t *testing.T, name, to string, mode os.FileMode) {
	t.Helper()
	from, err := exec.LookPath(name)
	if err != nil {
		t.Fatal(err)
	}
	program, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, program, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(to, mode); err != nil {
		t.Fatal(err)
	}
}
