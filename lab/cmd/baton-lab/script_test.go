//go:build unix

package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/internal/clitest"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/open"
)

func TestMain(m *testing.M) {
	clitest.Main(m, map[string]func(){"baton-lab": main, "locks": locks})
}

// locks lists the locks of a store, or takes one: locks URL [KEY].
func locks() {
	ctx := context.Background()
	err := func() error {
		store, err := open.Store(ctx, os.Args[1])
		if err != nil {
			return err
		}
		defer store.Close()
		locker, err := baton.New(store, baton.Config{TTL: time.Minute})
		if err != nil {
			return err
		}
		if len(os.Args) > 2 {
			_, err := locker.TryLock(ctx, os.Args[2])
			return err
		}
		for info, err := range locker.List(ctx, "") {
			if err != nil {
				return err
			}
			fmt.Println(info.Key)
		}
		return nil
	}()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func TestScripts(t *testing.T) {
	t.Parallel()
	runScripts(t, "testdata/script", "")
}

// The scripts in testdata/long have a Redis server at ADDR.
func TestLongScripts(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	runScripts(t, "testdata/long", testserver.Redis(t).Addr)
}

func runScripts(t *testing.T, dir, redis string) {
	docs, err := filepath.Abs("../../../docs")
	if err != nil {
		t.Fatal(err)
	}
	clitest.Scripts(t, dir, func(env *testscript.Env) error {
		env.Setenv("ADDR", redis)
		env.Setenv("DOCS", docs)
		return nil
	}, nil)
}
