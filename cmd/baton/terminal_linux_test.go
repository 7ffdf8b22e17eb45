package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// terminal is a pseudo terminal with an interactive shell on it.
type terminal struct {
	t     *testing.T
	dir   string
	host  *os.File // our end
	ended chan struct{}

	mu    sync.Mutex
	shown bytes.Buffer
	read  int // how much of it was awaited
}

func newTerminal(t *testing.T) *terminal {
	t.Helper()
	bash, err := exec.LookPath("bash")
	if err != nil {
		t.Skip("bash is not installed: install the package bash")
	}
	host, guest := openPTY(t)
	term := &terminal{t: t, dir: t.TempDir(), host: host, ended: make(chan struct{})}
	shell := exec.Command(bash, "--norc", "--noprofile", "-i")
	shell.Dir = term.dir
	shell.Env = append(os.Environ(), "PS1=$ ", "TERM=xterm", "HOME="+term.dir, "XDG_STATE_HOME="+term.dir, "BATON_STORE=", "HISTFILE=")
	shell.Stdin, shell.Stdout, shell.Stderr = guest, guest, guest
	shell.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	guest.Close()
	go func() {
		defer close(term.ended)
		var buf [4096]byte
		for {
			n, err := host.Read(buf[:])
			term.mu.Lock()
			term.shown.Write(buf[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		host.Close() // hangs up: the shell's jobs get HUP
		_ = shell.Process.Kill()
		_ = shell.Wait()
		<-term.ended
	})
	return term
}

func openPTY(t *testing.T) (host, guest *os.File) {
	t.Helper()
	host, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Skipf("no pseudo terminals here: %v", err)
	}
	fd := int(host.Fd())
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		t.Fatal(err)
	}
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Row: 24, Col: 100}); err != nil {
		t.Fatal(err)
	}
	guest, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	// Fd made it blocking; reading must end with Close.
	host2, err := unix.Dup(fd)
	if err != nil {
		t.Fatal(err)
	}
	host.Close()
	if err := unix.SetNonblock(host2, true); err != nil {
		t.Fatal(err)
	}
	return os.NewFile(uintptr(host2), "ptmx"), guest
}

// typed sends keys.
func (term *terminal) typed(keys string) {
	term.t.Helper()
	if _, err := term.host.WriteString(keys); err != nil {
		term.t.Fatal(err)
	}
}

const (
	ctrlC = "\x03"
	ctrlZ = "\x1a"
	ctrlB = "\x1c" // with a backslash: QUIT
)

// shows waits until something appears that was not awaited before.
func (term *terminal) shows(want string) {
	term.t.Helper()
	pattern := regexp.MustCompile(want)
	poll(term.t, func() error {
		term.mu.Lock()
		defer term.mu.Unlock()
		at := pattern.FindIndex(term.shown.Bytes()[term.read:])
		if at == nil {
			return fmt.Errorf("no %q on the terminal:\n%s", want, strings.ReplaceAll(term.shown.String(), "\x1b", "␛"))
		}
		term.read += at[1]
		return nil
	})
}

func (term *terminal) file(name string) string { return filepath.Join(term.dir, name) }

// foreground waits until the process in the file has the terminal and runs.
func (term *terminal) foreground(file string) {
	term.t.Helper()
	pid, err := os.ReadFile(term.file(file))
	if err != nil {
		term.t.Fatal(err)
	}
	poll(term.t, func() error {
		stat, err := os.ReadFile("/proc/" + string(pid) + "/stat")
		if err != nil {
			return err
		}
		_, fields, _ := bytes.Cut(stat, []byte(") "))
		raw, err := term.host.SyscallConn()
		if err != nil {
			return err
		}
		var group int
		if err := raw.Control(func(fd uintptr) { group, err = unix.IoctlGetInt(int(fd), unix.TIOCGPGRP) }); err != nil {
			return err
		}
		if err != nil || fmt.Sprint(group) != string(pid) || fields[0] == 'T' {
			return fmt.Errorf("process %s is in state %c, the foreground is %d, %v", pid, fields[0], group, err)
		}
		return nil
	})
}

func TestTerminalJobControl(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)

	// Ctrl-Z suspends the command and baton; fg continues both; Ctrl-C
	// reaches the command.
	term.typed("baton run --ttl 60s k -- helper hold pid\n")
	awaitText(t, term.file("pid"), "")
	term.foreground("pid")
	term.typed(ctrlZ)
	term.shows(`Stopped[^\n]*\n`)
	term.typed("fg\n")
	term.foreground("pid")
	term.typed(ctrlC)
	term.typed("echo code=$?\n")
	term.shows(`code=130`)

	// The command reads the keyboard.
	term.typed("baton run k -- helper line\n")
	term.typed("hello\n")
	term.shows(`read "hello`)

	// In a pipeline, too, where it does not get the terminal at once.
	term.typed("baton run k -- helper line | cat\n")
	term.typed("there\n")
	term.shows(`read "there`)

	// A job in the background that reads is suspended until it is wanted.
	term.typed("set -b\n") // the shell tells at once
	term.typed("baton run --ttl 60s k -- helper line &\n")
	term.shows(`Stopped[^\n]*\n`)
	term.typed("fg\n")
	term.shows(`baton run`)
	term.typed("you\n")
	term.shows(`read "you`)

	// The shell has its terminal back.
	term.typed("echo still $((1+1))\n")
	term.shows(`still 2`)
}

func TestTerminalSuspendedTooLong(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	term.typed("baton run --ttl 2s k -- helper hold pid\n")
	awaitText(t, term.file("pid"), "")
	term.foreground("pid")
	term.typed(ctrlZ)
	term.shows(`Stopped[^\n]*\n`)
	// Meanwhile another process gets the lock.
	term.typed("baton run k -- helper exit 0\necho got=$?\n")
	term.shows(`got=0`)
	term.typed("fg\n")
	term.shows(`the command was stopped`)
	term.typed("echo code=$?\n")
	term.shows(`code=79`)
}

// A script ends when Ctrl-C ends the command under a lock, or the waiting for one.
func TestTerminalInterruptsScripts(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, line string
		typed      func(*terminal)
	}{
		{"command", "baton run k -- helper hold pid", func(term *terminal) {
			awaitText(t, term.file("pid"), "")
			term.foreground("pid")
		}},
		{"command without the terminal", "baton run k -- helper hold pid > out", func(term *terminal) {
			awaitText(t, term.file("pid"), "")
		}},
		{"nested", "baton run k -- baton elect l -- helper hold pid", func(term *terminal) {
			awaitText(t, term.file("pid"), "")
			term.foreground("pid")
		}},
		{"once", "baton once k -- helper hold pid", func(term *terminal) {
			awaitText(t, term.file("pid"), "")
		}},
		{"waiting", "baton run held -- helper exit 0", func(term *terminal) {
			term.shows(`waiting for "held"`)
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			term := newTerminal(t)
			if err := os.WriteFile(term.file("s"), []byte(c.line+"\necho next\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			term.typed("baton lock held > handle; echo locked=$?\n")
			term.shows(`locked=0`)
			term.typed("bash s\n")
			c.typed(term)
			term.typed(ctrlC)
			term.typed("echo code=$?\n")
			term.shows(`code=130`)
			term.mu.Lock()
			defer term.mu.Unlock()
			if shown := term.shown.String(); strings.Contains(shown, "next\r\n") {
				t.Errorf("the script went on:\n%s", shown)
			}
		})
	}
}

// A command that --on-ask ends by INT was not interrupted at the terminal: the script
// goes on.
func TestTerminalAsked(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	const script = "baton run --ttl 3s --on-ask INT k -- helper hold pid\necho code=$?\n"
	if err := os.WriteFile(term.file("s"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	term.typed("bash s\n")
	awaitText(t, term.file("pid"), "")
	term.foreground("pid")
	ask := exec.CommandContext(t.Context(), "baton", "ask", "k", "why")
	ask.Env = append(os.Environ(), "HOME="+term.dir, "XDG_STATE_HOME="+term.dir, "BATON_STORE=")
	if out, err := ask.CombinedOutput(); err != nil {
		t.Errorf("%v: %s", err, out)
	}
	term.shows(`code=130`)
}

// The others of the job get QUIT, too; bash goes on after it.
func TestTerminalQuits(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	const script = `ulimit -c 0
helper trap log &
baton run k -- sh -c 'printf %s $$ > new; mv new pid; exec sleep 1000'
echo code=$?
kill $!
`
	if err := os.WriteFile(term.file("s"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	term.typed("bash s\n")
	awaitText(t, term.file("log"), "ready")
	awaitText(t, term.file("pid"), "")
	term.foreground("pid")
	term.typed(ctrlB)
	term.shows(`code=131`)
	awaitText(t, term.file("log"), "quit")
}

// A baton whose shell has ended cannot give its command the terminal: one that asks
// for it is ended, rather than stopped and continued for ever.
func TestTerminalOrphaned(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	for _, c := range []struct{ key, deaf string }{{"k", ""}, {"l", "deaf"}} {
		term.typed(fmt.Sprintf("( { baton run --ttl 60s %[1]s -- helper tty go pid-%[1]s %[2]s 2>said-%[1]s; echo ended $? > code-%[1]s; } & ); echo back$((1+1))\n", c.key, c.deaf))
		term.shows(`back2`)
		awaitText(t, term.file("pid-"+c.key), "")
		pid := pidIn(t, term.file("pid-"+c.key))
		t.Cleanup(func() {
			if t.Failed() {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		})
	}
	if err := os.WriteFile(term.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for key, code := range map[string]string{"k": "129", "l": "137"} {
		awaitText(t, term.file("code-"+key), "ended "+code+"\n")
		awaitText(t, term.file("said-"+key), "the command wants the terminal")
	}
	term.typed("baton run -n k -- helper exit 0; echo code=$?\n")
	term.shows(`code=0`)
}

// In a container the parent, which is outside, has the number 0 and continues no
// process: Ctrl-Z does not suspend.
func TestTerminalInAContainer(t *testing.T) {
	t.Parallel()
	const unshare = "unshare --user --map-root-user --pid --fork --mount-proc "
	if out, err := exec.Command("sh", "-c", unshare+"true").CombinedOutput(); err != nil {
		t.Skipf("no user namespaces here: %v: %s", err, out)
	}
	term := newTerminal(t)
	term.typed(unshare + "baton run k -- sh -c 'echo ready$((1+1)); exec helper line'\n")
	term.shows(`ready2`)
	term.typed(ctrlZ + "hello\n")
	term.shows(`read "hello`)
}

func TestTerminalProgress(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	term.typed("baton run k -- helper hold pid go &\n")
	awaitText(t, term.file("pid"), "")
	term.typed("baton run k -- helper exit 5\n")
	term.shows(`waiting for "k" \(0s\): held by \S+:\d+ `)
	term.shows(`waiting for "k" \(\d+s\): held by \S+:\d+ helper for [^\r]+, we are`)
	if err := os.WriteFile(term.file("go"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	term.shows("\r\x1b\\[K")
	term.typed("echo code=$?\n")
	term.shows(`code=5`)
}

func TestTerminalBreakAsks(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	term.typed("baton lock k > handle; echo locked=$?\n")
	term.shows(`locked=0`)
	term.typed("baton break k\n")
	term.shows(`take it away, while its holder may be at work\? \[y/N\] `)
	term.typed("\necho code=$?\n")
	term.shows(`left "k" alone`)
	term.shows(`code=75`)
	term.typed("baton break k\n")
	term.shows(`\[y/N\] `)
	term.typed("y\n")
	term.shows(`took "k" from 1 holder`)
}

// A yes counts only for the holder that was shown.
func TestTerminalBreakAsksAgainAboutTheNextHolder(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	term.typed("export BATON_STORE=sqlite:$HOME/x.db\n")
	baton := func(args ...string) string {
		t.Helper()
		cmd := exec.Command("baton", append([]string{"-b", "sqlite:" + term.file("x.db")}, args...)...)
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("%v: %v", args, err)
		}
		return strings.TrimSpace(string(out))
	}
	first := baton("lock", "--ttl", "10m", "k")
	term.typed("baton break k\n")
	term.shows(`\[y/N\] `)
	baton("unlock", first)
	second := baton("lock", "--ttl", "10m", "k")
	term.typed("y\n")
	term.shows(`its holders have changed meanwhile[^\n]*\n[^\n]*lock "k" is held by[^\n]*\n[^\n]*\[y/N\] `)
	baton("renew", "--ttl", "10m", second)
	term.typed("n\necho code=$?\n")
	term.shows(`left "k" alone`)
	term.shows(`code=75`)

	// If that holder has ended, there is no lock to break.
	term.typed("baton break k\n")
	term.shows(`\[y/N\] `)
	baton("unlock", second)
	term.typed("y\necho code=$?\n")
	term.shows(`"k" is free: there is nothing to break`)
	term.shows(`code=0`)

	// A holder that has renewed is still the same holder.
	third := baton("lock", "--ttl", "10m", "k")
	term.typed("baton break k\n")
	term.shows(`\[y/N\] `)
	baton("renew", "--ttl", "1h", third)
	term.typed("y\n")
	term.shows(`took "k" from 1 holder`)
}

func TestTerminalWatch(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	term.typed("baton lock order:1 > handle; baton watch --every 50ms order:\n")
	term.shows(regexp.QuoteMeta(enterScreen))
	term.shows(`1 locks under "order:"`)
	term.shows(`order:1 +exclusive`)
	term.typed(ctrlC)
	term.shows(regexp.QuoteMeta(leaveScreen))
	term.typed("echo code=$?\n")
	term.shows(`code=0`)
}

func TestTerminalIsNarrow(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	term.typed("stty cols 40; baton lock order:1 > handle; baton ls\n")
	term.shows(`order:1\r\n  mode +exclusive\r\n  held by +\S+:\d+ bash\r\n`)
	term.typed("baton watch --every 50ms order:\n")
	term.shows(`order:1\S*\s+mode +exclusive`)
	term.typed(ctrlC)
	term.shows(regexp.QuoteMeta(leaveScreen))
}
