package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// A command that baton may not signal, because it is root's, as under sudo: the
// lock stays with it until it has ended.
func TestLockIsKeptWithWhatCannotBeStopped(t *testing.T) {
	t.Parallel()
	if os.Getuid() != 0 {
		t.Skip("only root can make a command that other users may not signal")
	}
	const nobody = 65534
	for _, c := range []struct {
		name  string
		flags []string
		run   []string
		code  int
	}{
		{"max-hold", []string{"--max-hold", "200ms"}, []string{"./helper", "rooted", "pid"}, exitKilled},
		{"left behind", nil, []string{"sh", "-c", "./helper rooted pid & until test -e pid; do :; done; exit 3"}, 3},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
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
			flags := append([]string{"-b", "sqlite:x.db", "run", "--ttl", "3s", "--grace", "50ms"}, c.flags...)
			holder := exec.Command(filepath.Join(dir, "baton"), append(append(flags, "k", "--"), c.run...)...)
			holder.Dir, holder.Stderr = dir, errs
			holder.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: nobody, Gid: nobody}}
			start(t, holder)
			awaitText(t, pid, "")
			left := pidIn(t, pid)
			end := sync.OnceFunc(func() { _ = syscall.Kill(left, syscall.SIGKILL) })
			t.Cleanup(end)

			awaitText(t, said, "baton may not signal it")
			awaitText(t, said, "the lock is kept until it has ended")
			next := exec.Command("baton", "-b", "sqlite:x.db", "run", "-n", "k", "--", "helper", "exit", "0")
			next.Dir = dir
			if out, err := next.CombinedOutput(); next.ProcessState.ExitCode() != exitNotAcquired {
				t.Errorf("while it runs, the next one ended with %v, want exit code %d:\n%s", err, exitNotAcquired, out)
			}
			end()
			if err := holder.Wait(); holder.ProcessState.ExitCode() != c.code {
				text, _ := os.ReadFile(said)
				t.Errorf("the holder ended with %v, want exit code %d:\n%s", err, c.code, text)
			}
			next = exec.Command("baton", "-b", "sqlite:x.db", "run", "-n", "k", "--", "helper", "exit", "0")
			next.Dir = dir
			if out, err := next.CombinedOutput(); err != nil {
				t.Errorf("afterwards, the next one ended with %v:\n%s", err, out)
			}
		})
	}
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
