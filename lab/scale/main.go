// Package scale measures how the cost of Baton grows with the number of leases, processes,
// waiters of one key, acquisitions and decisions per second. It starts one server of each
// kind as private children, writes its figures to lab/results/scale.json, and makes
// lab/results/scale.md from that. Run it by "make scale", on an otherwise idle machine. It
// needs Linux.
//
// Each part of a measurement runs in a process of its own, a copy of this program. So memory
// and CPU time are those of one part, and its leases end with the process.
package scale

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// Config says what Run measures, and where.
type Config struct {
	Root   string // the folder of the repository
	Only   string // only these stores, separated by commas; the others' figures stay
	Quick  bool   // measure little, for a few seconds, and print the figures
	Render bool   // make the page from lab/results/scale.json, without measuring
}

// Run measures all stores, and writes the page. Programs that call it must call Main first.
func Run(ctx context.Context, cfg Config) error {
	file := filepath.Join(cfg.Root, "lab", "results", "scale.json")
	if cfg.Render {
		r, err := load(file)
		if err != nil {
			return err
		}
		return writePage(cfg.Root, r)
	}
	p, kinds := full, kinds
	if cfg.Quick {
		p, kinds = small, quickKinds()
	}
	if cfg.Only != "" {
		names := strings.Split(cfg.Only, ",")
		for _, name := range names {
			if !slices.ContainsFunc(kinds, func(k kind) bool { return k.name == name }) {
				return fmt.Errorf("there is no store %q: there are %s", name, namesOf(kinds))
			}
		}
		kinds = slices.DeleteFunc(slices.Clone(kinds), func(k kind) bool { return !slices.Contains(names, k.name) })
	}
	r := &results{Date: time.Now().UTC().Format(time.DateOnly), Machine: thisMachine()}
	if cfg.Only != "" && !cfg.Quick { // the other stores keep their figures
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
		if !cfg.Quick { // an error of a later store must not lose these figures
			if err := r.save(file); err != nil {
				return err
			}
		}
	}
	if cfg.Quick {
		text, err := r.text()
		if err == nil {
			_, err = os.Stdout.Write(text)
		}
		return err
	}
	return writePage(cfg.Root, r)
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
