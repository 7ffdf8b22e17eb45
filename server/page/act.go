package page

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
)

const (
	// actTimeout bounds how long a person waits for the store.
	actTimeout = 10 * time.Second

	// askFor is the longest time for which a request to release a lock stays.
	askFor = 5 * time.Minute

	// askLook is how often awaitRelease looks at the lock.
	askLook = time.Second

	// maxReason is the longest reason, in bytes: the store shows it as an owner.
	maxReason = 128
)

// An act is what a person wants to do to a lock.
type act struct {
	Key    string   `json:"key"`
	Reason string   `json:"reason"`
	Grants []string `json:"grants"` // of the holders on the person's screen; optional for ask
}

// done is the answer to an act: the number of holders that it was about.
type done struct {
	Holders int `json:"holders"`
}

// begin reads an act, and finds the holders of its lock. If the act cannot be done, begin
// has answered, and ok is false.
func (p *Page) begin(ctx context.Context, w http.ResponseWriter, r *http.Request) (a act, who Caller, info driver.KeyInfo, ok bool) {
	if who, ok = p.read(w, r, &a); !ok {
		return a, who, info, false
	}
	a.Reason = strings.TrimSpace(a.Reason)
	if reason := badReason(a.Reason); reason != "" {
		refuse(w, http.StatusBadRequest, "reason", "the reason "+reason)
		return a, who, info, false
	}
	err := who.May(VerbList, a.Key)
	if err == nil {
		err = who.May(VerbBreak, a.Key)
	}
	if err != nil {
		p.about(a, who, r).Warn("a caller of the page was denied", "path", r.URL.Path, "error", err.Error())
		refuse(w, http.StatusForbidden, "denied", err.Error())
		return a, who, info, false
	}
	info, err = p.cfg.Locks.Inspect(ctx, a.Key)
	switch {
	case err != nil:
		p.fail(w, r, a, who, err)
		return a, who, info, false
	case len(info.Holders) == 0:
		refuse(w, http.StatusConflict, "free", "nobody holds the lock")
		return a, who, info, false
	}
	return a, who, info, true
}

// about returns the Logger for lines about an act.
func (p *Page) about(a act, who Caller, r *http.Request) *slog.Logger {
	return p.cfg.Logger.With("caller", driver.Printable(who.Name()), "remote", r.RemoteAddr, "key", driver.Printable(a.Key), "reason", driver.Printable(a.Reason))
}

func badReason(reason string) string {
	switch {
	case reason == "":
		return "is missing"
	case len(reason) > maxReason:
		return "is longer than " + strconv.Itoa(maxReason) + " bytes"
	case !utf8.ValidString(reason) || driver.Printable(reason) != reason:
		return "has a character that cannot be seen"
	}
	return ""
}

// fail answers with an error of the Locker, and logs an error of the store.
func (p *Page) fail(w http.ResponseWriter, r *http.Request, a act, who Caller, err error) {
	switch {
	case errors.Is(err, driver.ErrHeld):
		refuse(w, http.StatusConflict, "stands", err.Error())
	case errors.Is(err, driver.ErrUnavailable), errors.Is(err, driver.ErrUnknown), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		p.about(a, who, r).Warn("the store has not answered the page", "error", text(err))
		refuse(w, http.StatusServiceUnavailable, "store", heard(who, err).Error())
	case check.Key(a.Key) != nil:
		refuse(w, http.StatusBadRequest, "bad", err.Error())
	default:
		p.about(a, who, r).Warn("the store has refused what the page asked for", "error", text(err))
		refuse(w, http.StatusBadRequest, "bad", heard(who, err).Error())
	}
}

func refuseChanged(w http.ResponseWriter) {
	refuse(w, http.StatusConflict, "changed", "the holders have changed meanwhile: look again")
}

// breakLock revokes the grants that the person saw. It does not end with the browser,
// which could leave it half done.
func (p *Page) breakLock(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), actTimeout)
	defer cancel()
	a, who, info, ok := p.begin(ctx, w, r)
	if !ok {
		return
	}
	if !agreed(a.Grants, info.Holders) {
		refuseChanged(w)
		return
	}
	log := p.about(a, who, r)
	log.Info("a lock is to be broken") // the process may end before the next line
	n, err := p.cfg.Locks.Break(ctx, a.Key, info.Grants()...)
	p.poll.touch(a.Key)
	switch {
	case err != nil:
		log.Error("a lock may have been broken", "error", text(err))
		p.fail(w, r, a, who, err)
		return
	case n == 0: // the last holder has released it since the look
		refuseChanged(w)
		return
	}
	log.Info("a lock was broken", "holders", n)
	p.cfg.Recent.add(event{What: "broken", Trouble: true, named: named{Key: a.Key}, Error: because(a, who)})
	answer(w, done{n})
}

// because returns the reason of an act for the events, with the caller's name.
func because(a act, who Caller) string {
	if by := driver.Printable(who.Name()); by != "" {
		return by + ": " + a.Reason
	}
	return a.Reason
}

// agreed reports whether the person saw the grants of these holders, as far as the page
// shows them.
func agreed(saw []string, holders []driver.HolderInfo) bool {
	holders = holders[:min(len(holders), maxQueue)]
	return len(saw) == len(holders) && !slices.ContainsFunc(holders, func(h driver.HolderInfo) bool { return !slices.Contains(saw, h.Grant) })
}

// ask asks the holders of a lock to release it. The request stays until they have done
// that, for askFor at most.
func (p *Page) ask(w http.ResponseWriter, r *http.Request) {
	ctx, cancel := context.WithTimeout(r.Context(), actTimeout)
	defer cancel()
	a, who, info, ok := p.begin(ctx, w, r)
	if !ok {
		return
	}
	if len(a.Grants) > 0 && !agreed(a.Grants, info.Holders) {
		refuseChanged(w)
		return
	}
	ended, ok := p.admitRequest()
	if !ok {
		refuse(w, http.StatusServiceUnavailable, "busy", "as many requests stand as may: wait for one to end")
		return
	}
	lease, err := p.cfg.Locks.Ask(ctx, a.Key, a.Reason)
	if err != nil {
		ended()
		p.fail(w, r, a, who, err)
		return
	}
	p.about(a, who, r).Info("the holders of a lock were asked to release it", "holders", len(info.Holders))
	p.cfg.Recent.add(event{What: "asked", named: named{Key: a.Key}, Error: because(a, who)})
	go func() {
		defer ended()
		p.awaitRelease(lease, a.Key, info.Holders)
		_ = lease.Unlock() // after an error the request ends with its TTL
		p.poll.touch(a.Key)
	}()
	answer(w, done{len(info.Holders)})
}

// awaitRelease returns when none of the holders holds the lock any more, or the request
// must end.
func (p *Page) awaitRelease(lease *baton.Lease, key string, holders []driver.HolderInfo) {
	ctx, cancel := context.WithTimeout(lease.Context(p.ctx), askFor)
	defer cancel()
	look := time.NewTicker(askLook)
	defer look.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-look.C:
		}
		info, err := p.cfg.Locks.Inspect(ctx, key)
		if err != nil {
			continue // the store may answer again
		}
		holders = slices.DeleteFunc(info.Holders, func(h driver.HolderInfo) bool {
			return !slices.ContainsFunc(holders, h.SameGrant)
		})
		if len(holders) == 0 {
			return
		}
	}
}

func answer(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	send(w, http.StatusOK, append(encode(v), '\n'))
}
