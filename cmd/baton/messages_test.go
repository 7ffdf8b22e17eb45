//go:build unix

package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// A reader that has stopped keeps Write waiting once. What it has not read is there when it
// goes on, in order, and what was omitted is counted where it would be.
func TestMessagesThatAreNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		gate, out := make(chan struct{}), &bytes.Buffer{}
		m := newMessages(writerFunc(func(text []byte) (int, error) {
			<-gate
			return out.Write(text)
		}))
		began := time.Now()
		for i := range maxUnread + 10 { // the first is being written
			fmt.Fprintf(m, "%d\n", i)
		}
		if took := time.Since(began); took != readPatience {
			t.Errorf("writing took %v", took)
		}
		m.flush(lastPatience) // it cannot wait in the queue
		if took := time.Since(began); took != readPatience {
			t.Errorf("the end took %v", took-readPatience)
		}
		for range maxUnread { // all but the last
			gate <- struct{}{}
		}
		synctest.Wait()
		fmt.Fprintln(m, "last")
		close(gate)
		m.flush(lastPatience)
		lines := strings.Fields(strings.ReplaceAll(out.String(), " ", "_"))
		want := []string{fmt.Sprint(maxUnread), "baton:_10_messages_were_omitted_here:_nothing_read_them", "last"}
		if got := lines[max(0, len(lines)-3):]; fmt.Sprint(got) != fmt.Sprint(want) || lines[0] != "0" || len(lines) != maxUnread+3 {
			t.Errorf("%d lines were read, the last of them %q, want %q", len(lines), got, want)
		}
		began = time.Now()
		fmt.Fprintln(m, "more")
		if took := time.Since(began); took != 0 || !strings.HasSuffix(out.String(), "last\nmore\n") {
			t.Errorf("a message to a reader that goes on took %v", took)
		}
		close(m.queue) // ends the goroutine
	})
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(text []byte) (int, error) { return f(text) }

// unreadProcess starts baton with a standard error that is full, and is not read.
func unreadProcess(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	var ends [2]int
	if err := syscall.Pipe(ends[:]); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { syscall.Close(ends[0]) })
	defer syscall.Close(ends[1])
	err := syscall.SetNonblock(ends[1], true)
	for err == nil {
		_, err = syscall.Write(ends[1], make([]byte, 512))
	}
	if err != syscall.EAGAIN {
		t.Fatal(err)
	}
	if err := syscall.SetNonblock(ends[1], false); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("baton", args...)
	stderr, err := syscall.Dup(ends[1])
	if err != nil {
		t.Fatal(err)
	}
	file := os.NewFile(uintptr(stderr), "a full pipe")
	defer file.Close()
	cmd.Stderr = file
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	return cmd
}

// endsWith waits for the end of a process, and demands its exit code.
func endsWith(t *testing.T, cmd *exec.Cmd, code int) {
	t.Helper()
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	select {
	case err := <-ended:
		if got := cmd.ProcessState.ExitCode(); got != code {
			t.Errorf("it ended with %d, %v, want %d", got, err, code)
		}
	case <-time.After(patience):
		t.Fatal("it does not end")
	}
}

func soon[T any](t *testing.T, try func() (T, error)) T {
	t.Helper()
	late := time.After(patience)
	look := time.NewTicker(5 * time.Millisecond)
	defer look.Stop()
	for {
		v, err := try()
		if err == nil {
			return v
		}
		select {
		case <-late:
			t.Fatal(err)
		case <-look.C:
		}
	}
}

// A log that is not read, as of a terminal after Ctrl-S, stops nothing.
func TestStandardErrorThatIsNotRead(t *testing.T) {
	t.Parallel()
	t.Run("agent", func(t *testing.T) {
		t.Parallel()
		dir, err := os.MkdirTemp("", "unread-") // t.TempDir makes paths that are too long for sockets
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.RemoveAll(dir) })
		at := filepath.Join(dir, "s")
		cmd := unreadProcess(t, "-b", "memory:", "agent", "--socket", at)
		conn := soon(t, func() (net.Conn, error) { return net.Dial("unix", at) })
		defer conn.Close()
		_ = conn.SetDeadline(time.Now().Add(patience))
		fmt.Fprintln(conn, `{"id":1,"do":"lock","key":"k"}`)
		in := bufio.NewScanner(conn)
		for _, want := range []string{`"v":1`, `"id":1,"ok":true`} {
			if !in.Scan() || !strings.Contains(in.Text(), want) {
				t.Fatalf("%q, %v, want %s", in.Text(), in.Err(), want)
			}
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		endsWith(t, cmd, 0)
	})
	t.Run("serve", func(t *testing.T) {
		t.Parallel()
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		at := l.Addr().String()
		l.Close()
		cmd := unreadProcess(t, "-b", "memory:", "serve", "--listen", at)
		text := soon(t, func() (string, error) {
			res, err := http.Post("http://"+at+"/baton.v1.Locks/Break", "application/json", strings.NewReader(`{"key":"k","reason":"for the audit"}`))
			if err != nil {
				return "", err
			}
			defer res.Body.Close()
			text, err := io.ReadAll(res.Body)
			if res.StatusCode == http.StatusServiceUnavailable {
				return "", errors.New(string(text)) // the store is being opened
			}
			return string(text), err
		})
		if text != `{"holders":0}` {
			t.Errorf("the answer is %s", text)
		}
		_ = cmd.Process.Signal(syscall.SIGTERM)
		endsWith(t, cmd, 0)
	})
	t.Run("run", func(t *testing.T) {
		t.Parallel()
		endsWith(t, unreadProcess(t, "-v", "-b", "memory:", "run", "k", "--", "helper", "exit", "3"), 3)
	})
}

// A user who may do nothing cannot fill the log.
func TestLogOfDenials(t *testing.T) {
	t.Parallel()
	dir, err := os.MkdirTemp("", "denials-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	if err := os.WriteFile(filepath.Join(dir, "roles"), fmt.Appendf(nil, "uid:%d - a/=lock\n", os.Getuid()), 0o600); err != nil {
		t.Fatal(err)
	}
	log, err := os.Create(filepath.Join(dir, "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command("baton", "-b", "memory:", "agent", "--socket", "s", "--roles", "roles")
	cmd.Dir, cmd.Stderr = dir, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	conn := soon(t, func() (net.Conn, error) { return net.Dial("unix", filepath.Join(dir, "s")) })
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(patience))
	in := bufio.NewScanner(conn)
	in.Scan()
	began := time.Now()
	const n = 1000
	for i := range n {
		fmt.Fprintf(conn, `{"id":%d,"do":"lock","key":"b"}`+"\n", i+1)
		if !in.Scan() || !strings.Contains(in.Text(), `"denied"`) {
			t.Fatalf("%q, %v", in.Text(), in.Err())
		}
	}
	seconds := int(time.Since(began)/time.Second) + 2 // those that have begun
	text, err := os.ReadFile(log.Name())
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(text), "a request was denied"); got == 0 || got >= n/2 || got > maxFailures*seconds {
		t.Errorf("%d denials in %d s have %d lines", n, seconds, got)
	}
}

// A signal ends an agent, and a server, that waits for a file of its store.
func TestSignalWhileTheStoreIsBeingOpened(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{"agent", "--socket", "s"}, {"serve", "--listen", "127.0.0.1:0", "--audit", "s.lock"}} {
		t.Run(args[0], func(t *testing.T) {
			t.Parallel()
			dir, err := os.MkdirTemp("", "opening-")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { os.RemoveAll(dir) })
			fifo := filepath.Join(dir, "password")
			if err := syscall.Mkfifo(fifo, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command("baton", append([]string{"-b", "redis://127.0.0.1:1/?password-file=" + fifo}, args...)...)
			cmd.Dir = dir
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = cmd.Process.Kill() })
			soon(t, func() (os.FileInfo, error) { return os.Stat(filepath.Join(dir, "s.lock")) }) // what is opened before the store
			_ = cmd.Process.Signal(syscall.SIGTERM)
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			select {
			case <-ended:
			case <-time.After(patience):
				t.Fatal("it does not end")
			}
		})
	}
}
