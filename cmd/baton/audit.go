package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/batonhq/baton/internal/ownfile"
	"github.com/batonhq/baton/internal/roles"
)

// An audit logs, as lines of JSON, each break, each denial, each change of roles, and what
// is given back to limits. What clients can cause at will are warnings.
type audit struct {
	*slog.Logger
	file *auditFile
}

// openAudit opens the file at path to append; a new file is readable for its owner only.
// "-" is standard error, and "" no audit.
func (a *app) openAudit(path string) (*audit, error) {
	if path == "" {
		return &audit{slog.New(slog.DiscardHandler), nil}, nil
	}
	f := &auditFile{out: a.messages, failed: func(err error) { a.complain("the audit cannot be written: %s", safe(ofPage(err).Error())) }}
	if path != "-" {
		f.path = path
		if err := f.reopen(); err != nil {
			return nil, &exit{Code: exitConfig, Err: fmt.Errorf("--audit: %w; - is standard error", ofPage(err))}
		}
	}
	return &audit{slog.New(&fewWarnings{Handler: slog.NewJSONHandler(f, nil), warnings: newWarnings(maxDenials)}), f}, nil
}

// reopen opens path again: the present file may have been renamed to be archived.
func (l *audit) reopen() error {
	if l.file == nil || l.file.path == "" {
		return nil
	}
	return l.file.reopen()
}

// An auditFile calls failed at the first of several failures to write.
type auditFile struct {
	path   string // "": standard error
	failed func(error)

	mu      sync.Mutex
	out     io.Writer
	failing bool
}

func (f *auditFile) reopen() error {
	next, err := ownfile.Open(f.path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	f.mu.Lock()
	before := f.out
	f.out = next
	f.mu.Unlock()
	if before, ok := before.(*os.File); ok {
		_ = before.Close() // there is no buffer: each line was written
	}
	return nil
}

// Write writes a line. It escapes what a terminal would obey, which in JSON occurs only in
// strings.
func (f *auditFile) Write(line []byte) (int, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	_, err := f.out.Write(escapeJSON(string(line)))
	if err != nil && !f.failing {
		f.failed(err)
	}
	f.failing = err != nil
	return len(line), nil
}

// How many warnings of one message and one caller are logged in a second. Warnings cost a
// client nothing, and must not fill a disk.
const (
	maxDenials  = 100
	maxFailures = 10
)

// warnings counts the warnings of the present second.
type warnings struct {
	most int

	mu      sync.Mutex
	second  int64
	n       map[string]int // by message and caller, so that one caller cannot hide the warnings of others
	omitted int            // since the last warning that was logged
}

func newWarnings(most int) *warnings { return &warnings{most: most, n: make(map[string]int)} }

// fewWarnings omits warnings beyond the bound. The next one says how many were omitted.
type fewWarnings struct {
	slog.Handler
	*warnings
	caller string // of the attributes of all records
}

func (h *fewWarnings) Handle(ctx context.Context, r slog.Record) error {
	if r.Level == slog.LevelWarn {
		caller := h.caller
		r.Attrs(func(a slog.Attr) bool {
			caller = callerIn(caller, a)
			return true
		})
		omitted, ok := h.count(r.Message+" "+caller, r.Time)
		if !ok {
			return nil
		}
		if omitted > 0 {
			r.AddAttrs(slog.Int("omitted before", omitted))
		}
	}
	return h.Handler.Handle(ctx, r)
}

func callerIn(before string, a slog.Attr) string {
	if a.Key == "caller" {
		return a.Value.Resolve().String()
	}
	return before
}

func (h *fewWarnings) WithAttrs(attrs []slog.Attr) slog.Handler {
	caller := h.caller
	for _, a := range attrs {
		caller = callerIn(caller, a)
	}
	return &fewWarnings{h.Handler.WithAttrs(attrs), h.warnings, caller}
}

func (h *fewWarnings) WithGroup(name string) slog.Handler {
	return &fewWarnings{h.Handler.WithGroup(name), h.warnings, h.caller}
}

// count counts a warning, and reports whether to log it.
func (w *warnings) count(of string, now time.Time) (omitted int, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s := now.Unix(); s != w.second {
		w.second = s
		clear(w.n)
	}
	if w.n[of]++; w.n[of] > w.most {
		w.omitted++
		return 0, false
	}
	omitted, w.omitted = w.omitted, 0
	return omitted, true
}

// openRoles reads a file of roles, and shows its warnings.
func (a *app) openRoles(path string) (*roles.File, error) {
	f, warnings, err := roles.Open(path)
	if err != nil {
		return nil, &exit{Code: exitConfig, Err: ofFile(path, err)}
	}
	a.warnOf(path, warnings)
	return f, nil
}

// reloadRoles reads the file again. It reports whether roles have changed.
func (a *app) reloadRoles(f *roles.File, path string, log *audit) bool {
	change, warnings, err := f.Reload()
	if err != nil {
		err = ofFile(path, err)
		a.complain("the previous roles stay in force: %s", safe(err.Error()))
		log.Error("the previous roles stay in force", "reason", err.Error())
		return false
	}
	a.warnOf(path, warnings)
	a.say("roles: %d callers added, %d removed, %d changed", len(change.Added), len(change.Removed), len(change.Changed))
	log.Info("the roles were read", "added", change.Added, "removed", change.Removed, "changed", change.Changed)
	return !change.Empty()
}

func (a *app) warnOf(path string, warnings []roles.Warning) {
	for _, w := range warnings {
		a.say("%s, %v", safe(redactURL(path)), w)
	}
}

// reopenAudit calls reopen, and complains if that fails.
func (a *app) reopenAudit(log *audit) {
	if err := log.reopen(); err != nil {
		a.complain("the audit goes on in the previous file: %s", safe(ofPage(err).Error()))
	}
}
