//go:build linux

package faulttest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

const beatEnv = "BATON_FAULTTEST_BEAT"

// beat is a command that does not obey: it ignores SIGTERM and writes the time to a
// file for as long as it lives.
func beat(file string) {
	signal.Ignore(syscall.SIGTERM)
	f, err := os.Create(file)
	if err != nil {
		panic(err)
	}
	var now [8]byte
	for {
		binary.LittleEndian.PutUint64(now[:], uint64(monotonic()))
		if _, err := f.WriteAt(now[:], 0); err != nil {
			panic(err)
		}
	}
}

func lastBeat(t *testing.T, file string) int64 {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil || len(raw) != 8 {
		t.Fatalf("no beat: %v", err)
	}
	return int64(binary.LittleEndian.Uint64(raw))
}

// The store falls silent under "baton run": the command is dead, although it ignores
// SIGTERM, before another process can have the lock.
func TestRunStopsItsCommandInTime(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	bin := testserver.Baton(t)
	server := testserver.SharedRedis(t)
	proxy := faultproxy.New(t, server.Addr)
	file := filepath.Join(t.TempDir(), "beat")
	run := exec.Command(bin, "run", "--store", "redis://"+proxy.Addr, "--ttl", "3s", "--grace", "500ms", t.Name(), "--", os.Args[0])
	run.Env = append(os.Environ(), beatEnv+"="+file)
	var stderr bytes.Buffer
	run.Stderr = &stderr
	if err := run.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		run.Process.Kill()
		run.Wait()
		if t.Failed() {
			t.Logf("baton run wrote: %s", stderr.String())
		}
	})

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	eventually(t, "the command has started", 30*time.Second, func() bool {
		info, err := os.Stat(file)
		return err == nil && info.Size() == 8
	})
	proxy.Swallow(faultproxy.ToServer)
	proxy.Swallow(faultproxy.ToClient)
	lease, err := newLocker(t, "redis://"+server.Addr, baton.Config{}).Lock(ctx, t.Name())
	granted := monotonic()
	if err != nil {
		t.Fatal(err)
	}
	err = run.Wait()
	if last := lastBeat(t, file); last > granted {
		t.Errorf("the command lived for %v after the next grant", time.Duration(last-granted))
	}
	if exit, ok := errors.AsType[*exec.ExitError](err); !ok || exit.ExitCode() != 79 {
		t.Errorf("baton run ended with %v, want 79", err)
	}
	if !strings.Contains(stderr.String(), "could not be renewed in time") {
		t.Errorf("it did not say why: %q", stderr.String())
	}
	if err := lease.Unlock(); err != nil {
		t.Error(err)
	}
}
