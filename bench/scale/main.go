// Command scale measures how the cost of Baton grows with what is asked of it: leases,
// processes, waiters of one key, acquisitions and decisions per second. It starts one
// server of each kind as private children, writes what it measured to docs/scale.json,
// and makes docs/scale.md from that. Run it by "make scale", on a
// machine that has nothing else to do. It needs Linux.
//
// Each part of a measurement runs in a process of its own, a copy of this program, so
// that memory and CPU time are those of one part, and what it holds ends with it.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

func main() {
	if childMain() {
		return
	}
	root := flag.String("root", "..", "the `directory` of the repository")
	only := flag.String("only", "", "measure only these `stores`, separated by commas, and keep the others' figures")
	quick := flag.Bool("quick", false, "measure little, for a few seconds, and print the figures")
	render := flag.Bool("render", false, "make the page from docs/scale.json, without measuring")
	flag.Parse()
	if err := run(*root, *only, *quick, *render); err != nil {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

func run(root, only string, quick, render bool) error {
	file := filepath.Join(root, "docs", "scale.json")
	if render {
		r, err := load(file)
		if err != nil {
			return err
		}
		return writePage(root, r)
	}
	p, kinds := full, kinds
	if quick {
		p, kinds = small, quickKinds()
	}
	if only != "" {
		names := strings.Split(only, ",")
		for _, name := range names {
			if !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == name }) {
				return fmt.Errorf("there is no store %q: name some of %s", name, namesOf(kinds))
			}
		}
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !slices.Contains(names, k.name) })
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &results{Date: time.Now().UTC().Format(time.DateOnly), Machine: thisMachine()}
	if only != "" && !quick { // the others stay
		if old, err := load(file); err == nil {
			r.Stores = old.Stores
			r.Machine.LoadBefore = max(r.Machine.LoadBefore, old.Machine.LoadBefore)
		}
	}
	for _, k := range kinds {
		s, err := measureStore(ctx, k, p, os.Stderr)
		if err != nil {
			return fmt.Errorf("%s: %w", k.name, err)
		}
		r.put(s)
		r.Machine.LoadAfter = loadAverage()
		if !quick { // what is measured is not lost with what comes
			if err := r.save(file); err != nil {
				return err
			}
		}
	}
	if quick {
		text, err := r.text()
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	return writePage(root, r)
}

func namesOf(kinds []kind) string {
	var all []string
	for _, k := range kinds {
		all = append(all, k.name)
	}
	return strings.Join(all, ", ")
}

// measureStore starts a store's server, measures all parts, and ends the server.
func measureStore(ctx context.Context, k kind, p plan, log *os.File) (s store, err error) {
	site := new(testserver.Site)
	defer site.Close()
	say := func(format string, args ...any) {
		fmt.Fprintf(log, "scale: %-14s "+format+"\n", append([]any{k.name}, args...)...)
	}
	var at place
	if err := site.Try(func() { at = k.start(site) }); err != nil {
		return s, err
	}
	at.Kind = k.name
	if s.About, err = at.version(); err != nil {
		return s, fmt.Errorf("ask for its version: %w", err)
	}
	s.Name, s.Setup = k.name, k.setup
	parts := &parts{ctx: ctx, at: at, plan: p, say: say, store: &s}
	return s, parts.all()
}
