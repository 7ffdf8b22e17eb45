package main

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/httpguard"
	"github.com/batonhq/baton/internal/ownfile"
	"github.com/batonhq/baton/internal/remote"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/internal/textfile"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server"
	"github.com/batonhq/baton/server/page"
	"github.com/batonhq/baton/server/rls"
)

// serverFlags has the flags of "baton serve".
type serverFlags struct {
	listen   string
	secret   string
	roles    string
	cert     string
	key      string
	clientCA string
	hosts    []string
	rules    []string
	audit    string
	drain    time.Duration
	drains   bool // --drain was given: drain even if no client asked for readiness
	socket   string
	at       socketFlags
	plain    bool
	trusted  []string
	proxies  remote.Addresses // set by check
}

// failAfter is how long a store may take for a decision by rules without an on_failure.
const failAfter = 500 * time.Millisecond

// readTimeout is how long a client may take to read the metrics.
const readTimeout = 30 * time.Second

// callsFor is how long calls under way may take after the server was stopped.
const callsFor = 10 * time.Second

func (a *app) serveCommand() *cobra.Command {
	k := &serverFlags{}
	cmd := &cobra.Command{
		Use:   "serve [flags]",
		Short: "Give programs of other machines locks and limits over HTTP and gRPC",
		Long: `Listens at --listen, and answers calls for locks, limits and operations by JSON and by gRPC
(docs/server.md). It keeps nothing: the store does, and any number of servers may stand
before one store. They share the secret of --secret-file, so that a lease which one of
them has given can be renewed at another; without the file a server draws a secret that
ends with it.

What is neither loopback nor a Unix socket (--listen unix:PATH) needs callers that are told
apart, by access tokens (--roles, see "baton token"), by certificates (--client-ca), or both;
and TLS (--tls-cert, --tls-key), unless a mesh encrypts before this server and you say so
(--plaintext-behind-proxy). The file of --roles says what each caller may do. With
--client-ca alone each client with a certificate may do everything. On loopback without
them, every user of the machine may, and at a socket those who can write it; a web page may
not.

The files of --roles, --secret-file and TLS are read again when they change, and on HUP. If
there is a mistake in one, what it said before stays in force. A secret is replaced by way
of a file with two: each line is one, the first is for new leases, all are accepted. HUP also
goes on in a new file of --audit if the one before was renamed.

TERM, INT and QUIT end the server. If readiness (/readyz) was asked for within the last
minute, or --drain is given, that answers 503 for --drain while calls are answered as before,
so that a load balancer sends them elsewhere. Then calls that wait are answered.

If the store is away at the start, the server tries until it is there, and is not ready
(/readyz) until then.

With --rules, clients may ask the limits of a file, also by Envoy's rate limit service
(docs/proxies.md). The file is read again when it changes. If the store fails, and a rule
does not say what happens then, each server decides alone.

A browser sees at / the locks and limits of the store (docs/page.md). /metrics is for
Prometheus, which needs an access token if the clients do.

The audit has a line of JSON for every break, every denial, every change of roles, and when
a caller gives back to a limit.

` + exitTable,
		Example: `  baton serve
  baton serve --listen :7420 --secret-file /etc/baton/secret --roles /etc/baton/roles \
      --tls-cert /etc/baton/tls.crt --tls-key /etc/baton/tls.key`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&k.listen, "listen", "127.0.0.1:7420", "`HOST:PORT` or unix:PATH to listen at; without a host, all addresses of this machine")
	k.at.register(f)
	f.StringVar(&k.secret, "secret-file", "", "`FILE` with the secret that all servers of the store share: 32 random bytes in Base64, a line each")
	f.StringVar(&k.roles, "roles", "", "`FILE` of roles: who callers are, and what each may do")
	f.StringVar(&k.cert, "tls-cert", "", "`FILE` with the certificate of the server, in PEM")
	f.StringVar(&k.key, "tls-key", "", "`FILE` with its key")
	f.StringVar(&k.clientCA, "client-ca", "", "`FILE` with the certificate authorities of the clients")
	f.BoolVar(&k.plain, "plaintext-behind-proxy", false, "a mesh or proxy before this server encrypts: callers with access tokens need no TLS")
	f.StringArrayVar(&k.trusted, "trust-proxy", nil, "`CIDR` of proxies, or unix, whose PROXY protocol and X-Forwarded-For tell the audit's remote; may be repeated")
	f.StringArrayVar(&k.hosts, "host", nil, "host name accepted for unauthenticated requests, beside localhost (repeatable)")
	f.StringArrayVar(&k.rules, "rules", nil, "`FILE` with limits that clients may ask, or a folder of such files; may be repeated")
	f.StringVar(&k.audit, "audit", "-", "`FILE` for the audit; - is standard error")
	_ = cmd.RegisterFlagCompletionFunc("rules", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	f.DurationVar(&k.drain, "drain", 5*time.Second, "how long /readyz says no before a server that is stopped closes its port")
	cmd.RunE = does(func(ctx context.Context, _ []string) error {
		a.speakUp() // its messages are a log
		if err := k.check(f); err != nil {
			return err
		}
		return a.serve(ctx, k)
	})
	return cmd
}

// check refuses flags that make no sense. It needs no store.
func (k *serverFlags) check(f *pflag.FlagSet) error {
	k.drains = f.Changed("drain")
	path, unix := strings.CutPrefix(k.listen, "unix:")
	if unix {
		k.socket = path
	}
	switch {
	case k.drain < 0:
		return usage("--drain %v: it is a duration, or 0", k.drain)
	case unix && k.socket == "":
		return usage("--listen unix: the path is missing, such as unix:/run/baton/serve.sock")
	case !unix && (f.Changed("mode") || f.Changed("group")):
		return usage("--mode and --group are of a Unix socket: --listen unix:PATH")
	case k.plain && k.cert != "":
		return usage("--plaintext-behind-proxy is for a server without TLS: leave out --tls-cert, or the other")
	}
	if err := k.at.check(); err != nil {
		return err
	}
	for _, text := range k.trusted {
		if text == "unix" {
			k.proxies.Socket = true
			continue
		}
		p, err := netip.ParsePrefix(text)
		if addr, ofOne := netip.ParseAddr(text); ofOne == nil {
			p, err = netip.PrefixFrom(addr, addr.BitLen()), nil
		}
		if err != nil {
			return usage("--trust-proxy %s: it is a network such as 10.0.0.0/28, an address, or unix", safe(text))
		}
		k.proxies.Trusted = append(k.proxies.Trusted, p)
	}
	if k.proxies.V4, k.proxies.V6 = 32, 128; len(k.trusted) > 0 {
		k.proxies.Form = remote.XForwardedFor
	}
	if err := k.proxies.Check(); err != nil {
		return usage("--trust-proxy: %w", err)
	}
	return nil
}

func (a *app) serve(ctx context.Context, k *serverFlags) error {
	sigs, stopSigs := listen(syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	defer stopSigs()
	pipe := make(chan os.Signal, 1) // a pipe whose reader has gone must not end the server
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	watch := ownfile.NewWatch(k.roles, k.secret, k.cert, k.key, k.clientCA)
	files, err := a.openServed(k)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go watch.Follow(ctx, hangUp(ctx, sigs))
	shown, err := a.show()
	if err != nil {
		return err
	}
	a.recent = page.NewRecent()
	l, err := files.listen()
	if err != nil {
		return err
	}
	defer l.Close()
	front := &front{}
	h := server.HTTPServer(files.door.Handler(front))
	h.ErrorLog = slog.NewLogLogger(a.logger().Handler(), slog.LevelDebug)
	h.TLSConfig = files.door.TLS()
	defer h.Close()
	ended := make(chan error, 1)
	go func() {
		if h.TLSConfig != nil {
			ended <- h.ServeTLS(l, "", "")
			return
		}
		ended <- h.Serve(l)
	}()
	opened, err := a.openLater(ctx, sigs, func(s os.Signal) bool {
		if s == syscall.SIGHUP {
			a.reloadServed(files)
			return false
		}
		return true
	}, func() baton.Config { return baton.Config{} })
	store := opened.store
	if err != nil || store == nil {
		return err
	}
	defer shut(store)
	s, mux, err := a.servedBy(ctx, store, files, shown)
	if err != nil {
		return err
	}
	p, err := a.pageOf(opened.locks, store, files, mux)
	if err != nil {
		return err
	}
	front.Store(mux)
	a.serves(l, store.Traits(), files)
	for drained := (<-chan time.Time)(nil); ; {
		select {
		case err := <-ended:
			return fmt.Errorf("the server has ended: %w", err)
		case <-drained:
		case sig := <-sigs:
			if sig == syscall.SIGHUP {
				a.reloadServed(files)
				continue
			}
			a.tellSupervisor("STOPPING=1")
			if watched := s.Drain(); drained == nil && k.drain > 0 && (watched || k.drains) {
				front.leaving.Store(true)
				a.say("%v: /readyz says so for %v, and calls are answered; another signal ends that", sig, k.drain)
				drained = time.After(k.drain)
				continue
			}
		}
		a.say("no more calls; those under way are answered")
		p.Close()
		return a.shutDown(ctx, s, h)
	}
}

const noStoreYet = "the store has not been reached since the server was started"

// front answers requests also before the store was reached.
type front struct {
	atomic.Pointer[http.ServeMux]
	leaving atomic.Bool
}

func (f *front) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if f.leaving.Load() {
		w.Header().Set("Connection", "close") // the client's next connection may lead to another server
	}
	switch mux := f.Load(); {
	case mux != nil:
		mux.ServeHTTP(w, r)
	case r.URL.Path == "/healthz":
		_, _ = io.WriteString(w, "ok\n")
	case r.URL.Path == "/readyz":
		server.Readiness(w, r, noStoreYet)
	default: // clients of connect and gRPC, and Envoy, read this as unavailable
		w.Header().Set("Retry-After", "1")
		http.Error(w, noStoreYet, http.StatusServiceUnavailable)
	}
}

// shutDown answers the waiting calls, and then closes connections.
func (a *app) shutDown(ctx context.Context, s *server.Server, h *http.Server) error {
	ctx, cancel := context.WithTimeout(ctx, callsFor)
	defer cancel()
	if err := s.Shutdown(ctx); err != nil {
		a.complain("calls are under way after %v: their clients are cut off", callsFor)
	}
	if err := h.Shutdown(ctx); err != nil {
		_ = h.Close() // other connections end with the process
	}
	return nil
}

// served has the content of the files that the flags name.
type served struct {
	flags   *serverFlags
	door    *httpguard.Door
	roles   *roles.File    // nil: none
	rules   *rules.File    // nil: none
	secrets [][]byte       // nil: none
	server  *server.Server // nil: the store was not reached yet
	log     *audit
}

// openServed reads all files. It listens nowhere.
func (a *app) openServed(k *serverFlags) (*served, error) {
	f := &served{flags: k}
	var err error
	if k.roles != "" {
		if f.roles, err = a.openRoles(k.roles); err != nil {
			return nil, err
		}
		tokens, certificates, _ := f.roles.Table().Count()
		if tokens == 0 && (certificates == 0 || k.clientCA == "") {
			return nil, &exit{Code: exitConfig, Err: fmt.Errorf("%s: no caller can authenticate: make an access token by baton token new, or give --client-ca", redactURL(k.roles))}
		}
	}
	if f.log, err = a.openAudit(k.audit); err != nil {
		return nil, err
	}
	f.door, err = httpguard.New(httpguard.Config{
		Address: k.listen, Socket: k.socket != "", Plaintext: k.plain, Proxies: k.proxies, Roles: f.roles, Certificate: k.cert, Key: k.key, ClientCA: k.clientCA, Hosts: k.hosts,
		Open: []string{"/healthz", "/readyz", server.HealthPath, "/"}, Logger: a.warner(),
		Proxied: server.Proxied,
		Denied:  func(from string, err error) { f.log.Warn("a call was refused", "remote", from, "reason", err.Error()) },
	})
	if err != nil {
		return nil, doorError(err)
	}
	if k.secret != "" {
		if f.secrets, err = readSecrets(k.secret); err != nil {
			return nil, &exit{Code: exitConfig, Err: ofFile(k.secret, err)}
		}
	}
	if len(k.rules) > 0 {
		// A failing store is no error for callers of limits: then each server decides
		// alone.
		alone := rules.Failure{By: ratelimit.ByLocal, After: failAfter, Instances: 1}
		if f.rules, err = rules.OpenOr(alone, k.rules...); err != nil {
			return nil, &exit{Code: exitConfig, Err: ofRules(err)}
		}
	}
	return f, nil
}

func (f *served) listen() (net.Listener, error) {
	if f.flags.socket != "" {
		l, err := f.flags.at.listen(f.flags.socket)
		if err != nil {
			return nil, err
		}
		return f.door.Over(l), nil
	}
	l, err := f.door.Listen()
	if err != nil {
		return nil, &exit{Code: exitConfig, Err: err}
	}
	return l, nil
}

// doorError says which flags make a door unsafe, or which file is wrong.
func doorError(err error) error {
	if of, ok := errors.AsType[*httpguard.UnsafeError](err); ok {
		flags := strings.NewReplacer("a certificate and its key", "--tls-cert and --tls-key",
			"a CA of clients", "--client-ca", "access tokens, or", "--roles, or",
			"confirm that a mesh encrypts what is on the way", "confirm that a mesh encrypts what is on the way (--plaintext-behind-proxy)")
		return usage("--listen: %s", flags.Replace(of.Reason))
	}
	if of, ok := errors.AsType[*httpguard.FileError](err); ok {
		return &exit{Code: exitConfig, Err: ofFile(of.Path, of.Err)}
	}
	return err
}

// readSecrets reads the secrets that all servers of a store share, one a line.
func readSecrets(path string) (all [][]byte, err error) {
	text, err := ownfile.Read(path, 4096, true)
	if err != nil {
		return nil, err
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	for i, line := range lines {
		secret, err := base64.StdEncoding.DecodeString(strings.TrimSpace(line))
		if err != nil || len(secret) < 32 {
			return nil, fmt.Errorf("line %d has no 32 bytes or more in Base64: make it by head -c 32 /dev/urandom | base64", i+1)
		}
		if len(line) == 76 && i < len(lines)-1 { // base64 breaks lines at this length
			return nil, fmt.Errorf("line %d may be the beginning of a longer secret: write one without line breaks, base64 -w0", i+1)
		}
		all = append(all, secret)
	}
	return all, nil
}

// servedBy makes the server of a store, and the mux of everything that it answers.
func (a *app) servedBy(ctx context.Context, store driver.Store, f *served, shown *textfile.Metrics) (*server.Server, *http.ServeMux, error) {
	cfg := server.Config{
		Store: store, Audit: f.log.Logger,
		Logger: a.warner(),
		Caller: func(r *http.Request) (server.Caller, error) { return httpguard.Caller(r) },
	}
	var err error
	if f.rules != nil {
		if cfg.Limits, err = a.follow(ctx, store, f.rules); err != nil {
			return nil, nil, err
		}
	}
	s, err := server.New(cfg)
	if of, ok := errors.AsType[*server.ConfigError](err); ok {
		return nil, nil, &exit{Code: exitConfig, Err: of}
	}
	if err != nil {
		return nil, nil, err
	}
	if f.server = s; f.secrets != nil {
		if err := s.Rotate(f.secrets...); err != nil {
			return nil, nil, err
		}
	}
	mux := http.NewServeMux()
	mux.Handle("/", s.Handler())
	mux.Handle("GET /metrics", s.Guard(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(readTimeout))
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		_, _ = w.Write(shown.Text()) // a client that has gone needs no answer
	})))
	if cfg.Limits != nil {
		may := func(ctx context.Context, domain string, gives bool) error {
			return s.MayTake(ctx, domain+"/", gives)
		}
		path, envoy := rls.New(rls.Config{Limiter: cfg.Limits, Logger: cfg.Logger, May: may})
		mux.Handle(path, s.Guard(envoy))
	}
	return s, mux, nil
}

// pageOf makes the page for browsers, and mounts it. The document has no data; it asks for
// an access token if one is needed.
func (a *app) pageOf(locks *baton.Locker, store driver.Store, f *served, mux *http.ServeMux) (*page.Page, error) {
	cfg := page.Config{
		Locks: locks, Recent: a.recent, Logger: f.log.Logger,
		Caller: func(r *http.Request) (page.Caller, error) { return httpguard.Caller(r) },
	}
	cfg.Limits, _ = driver.As[limits.Lister](store)
	var err error
	cfg.Once, err = once.New(store, once.Config{})
	if err != nil && !errors.Is(err, baton.ErrUnsupported) { // without records the page shows no operations
		return nil, err
	}
	p, err := page.New(cfg)
	if err != nil {
		return nil, err
	}
	mux.Handle("GET /{$}", p)
	mux.Handle("/page/", p)
	return p, nil
}

// serves says that the server is ready, and warns of what users may not expect.
func (a *app) serves(l net.Listener, t driver.Traits, f *served) {
	if !t.Processes {
		a.say("store %s is not shared with other processes: only the clients of this server exclude each other", t.Store)
	}
	if f.secrets == nil {
		a.say("without --secret-file only this server can renew the leases that it grants, until it restarts; limits do not need it")
	}
	if f.door.Everyone() && f.flags.socket == "" {
		a.say("without --roles every user of this machine may do everything")
	} else if f.door.Everyone() {
		a.say("without --roles every user who can write the socket may do everything")
	}
	if f.flags.plain {
		a.say("without TLS: who is between the clients and this server can read access tokens, unless what is before it encrypts")
	}
	if f.roles == nil && f.flags.clientCA != "" {
		a.say("without --roles every client with a certificate may do everything")
	}
	scheme := "http"
	if f.flags.cert != "" {
		scheme = "https"
	}
	at := scheme + "://" + l.Addr().String()
	if f.flags.socket != "" {
		at = "unix:" + safe(f.flags.socket)
	}
	a.say("server over store %s listens at %s", a.opened, at)
	a.tellSupervisor("READY=1")
}

// hangUp returns a function that acts like the signal HUP, until ctx ends.
func hangUp(ctx context.Context, sigs chan<- os.Signal) func() {
	return func() {
		select {
		case sigs <- syscall.SIGHUP:
		case <-ctx.Done():
		}
	}
}

// reloadServed reads files again, at HUP. A file that cannot be read leaves the previous
// content in use.
func (a *app) reloadServed(f *served) {
	a.reopenAudit(f.log)
	if f.roles != nil {
		a.reloadRoles(f.roles, f.flags.roles, f.log)
	}
	read := func(path, what string, again func() error) {
		if path == "" {
			return
		}
		if err := again(); err != nil {
			a.complain("the previous %s stay in use: %s", what, safe(err.Error()))
			f.log.Error("the previous "+what+" stay in use", "reason", err.Error())
			return
		}
		a.say("the %s were read", what)
	}
	read(f.flags.secret, "secrets", func() error {
		secrets, err := readSecrets(f.flags.secret)
		if err == nil && f.server != nil {
			err = f.server.Rotate(secrets...)
		}
		if err != nil {
			return ofFile(f.flags.secret, err)
		}
		f.secrets = secrets
		return nil
	})
	read(f.flags.cert, "certificates", func() error {
		if err := f.door.Reload(); err != nil {
			return doorError(err)
		}
		return nil
	})
}
