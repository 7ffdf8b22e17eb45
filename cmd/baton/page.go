package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/term"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/httpguard"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/page"
)

// checkPage refuses an address that another machine can reach. All users of this machine
// can reach the page: see drawnToken.
func checkPage(addr string) error {
	host, _, err := net.SplitHostPort(addr)
	if err != nil {
		return usage("--page %s: it is an address and a port, such as 127.0.0.1:7380", safe(addr))
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return usage("--page %s: only addresses of this machine can be used, such as 127.0.0.1:7380", safe(addr))
	}
	return nil
}

// pageLog is the log of the page. Who broke a lock is logged even if --quiet was given,
// and without an audit.
func (a *app) pageLog(k *serving, log *audit) *slog.Logger {
	if k.audit != "" {
		return log.Logger
	}
	return slog.New(&fewWarnings{Handler: slog.NewTextHandler(a.messages, nil), warnings: newWarnings(maxFailures)})
}

// pageConns bounds the connections of browsers; half of them may be from one address.
// Every user of the machine can connect, and must leave enough for the clients of the
// agent and for the store.
const pageConns = 512

// listenPage listens for browsers, and begins to remember events.
func (a *app) listenPage(addr string) (net.Listener, error) {
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, &exit{Code: exitConfig, Err: fmt.Errorf("--page: %w", err)}
	}
	if !l.Addr().(*net.TCPAddr).IP.IsLoopback() { // localhost may resolve to another address
		l.Close()
		return nil, &exit{Code: exitConfig, Err: fmt.Errorf("--page %s: %s is not a loopback address", safe(addr), l.Addr())}
	}
	a.recent = page.NewRecent()
	return httpguard.Bound(l, pageConns, a.warner()), nil
}

// drawnToken protects the page: only those who know the token, which is drawn at each
// start, can use it. The mode of a socket keeps other users out; an address does not.
type drawnToken string

func (t drawnToken) caller(r *http.Request) (page.Caller, error) {
	if subtle.ConstantTimeCompare([]byte(r.Header.Get("Authorization")), []byte("Bearer "+t)) != 1 {
		return nil, errors.New("the page needs the token that the agent has drawn at its start")
	}
	return holderOfToken{}, nil
}

type holderOfToken struct{}

func (holderOfToken) Name() string                { return "" }
func (holderOfToken) May(string, string) error    { return nil }
func (holderOfToken) MaySome(string, string) bool { return true }

// servePage answers browsers at l until ctx ends. Then it waits until the requests to
// release locks have ended. The caller reports the recent events to all.
func (a *app) servePage(ctx context.Context, k *serving, l net.Listener, log *slog.Logger, locks *baton.Locker, store driver.Store, ops *once.Runner) (ended <-chan struct{}, err error) {
	token := drawnToken(rand.Text())
	cfg := page.Config{Locks: locks, Once: ops, Recent: a.recent, Caller: token.caller, Hosts: page.Loopback, Logger: log}
	cfg.Limits, _ = driver.As[limits.Lister](store)
	p, err := page.New(cfg)
	if err != nil {
		return nil, err
	}
	forget, err := a.tellPage(k, fmt.Sprintf("http://%s/#token=%s", l.Addr(), token))
	if err != nil {
		return nil, err
	}
	h := server.HTTPServer(p)
	h.ErrorLog = slog.NewLogLogger(a.logger().Handler(), slog.LevelDebug)
	go func() { _ = h.Serve(l) }() // until Close
	done := make(chan struct{})
	go func() {
		defer close(done)
		<-ctx.Done()
		p.Close()
		_ = h.Close()
		forget()
	}()
	return done, nil
}

// tellPage prints the address of the page, with its token, on a terminal. Any other
// output, such as a journal, may be kept for weeks: then the address goes into a file
// that only its owner can read, until forget is called. All of it is said even if quiet:
// without the token no user can use the page.
func (a *app) tellPage(k *serving, url string) (forget func(), err error) {
	if term.IsTerminal(int(a.stderr.Fd())) {
		a.complain("the page is at %s", url)
		return func() {}, nil
	}
	path := k.socket + ".page"
	if k.systemd {
		dir, _, _ := strings.Cut(os.Getenv("RUNTIME_DIRECTORY"), ":")
		if dir == "" {
			return nil, &exit{Code: exitConfig, Err: errors.New("--page: there is no directory for the file with the address of the page: the unit needs RuntimeDirectory=baton-agent")}
		}
		path = filepath.Join(dir, "page")
	}
	_ = os.Remove(path) // of an agent that died; a file that stays is not overwritten
	f, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return nil, &exit{Code: exitConfig, Err: fmt.Errorf("--page: %w", ofPage(err))}
	}
	_, err = fmt.Fprintln(f, url)
	if err = cmp.Or(err, f.Close()); err != nil {
		_ = os.Remove(path)
		return nil, &exit{Code: exitConfig, Err: fmt.Errorf("--page: %w", ofPage(err))}
	}
	a.complain("the address of the page, with its token, is in %s", safe(path))
	return func() { _ = os.Remove(path) }, nil
}
