// Package httpguard guards an HTTP port. It decides whether an address is safe to listen
// at, and who a caller is. It refuses before a handler sees them: connections beyond a
// bound, connections of clients that do not read, requests that the page of another site
// sent, and requests of unknown callers.
package httpguard

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/pires/go-proxyproto"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/remote"
	"github.com/batonhq/baton/internal/roles"
)

// Config says what listens where, and which callers are let in.
type Config struct {
	// Address is HOST:PORT. Without a host it means all addresses of this machine.
	Address string

	// Socket says that the listener is a Unix socket, whose mode decides who can connect.
	// Address is ignored then.
	Socket bool

	// Plaintext says that something before this machine encrypts, such as the proxies of a
	// mesh: then callers with access tokens are served without TLS on every address.
	Plaintext bool

	// Proxies are trusted when they tell the address of their client, by the PROXY
	// protocol or by X-Forwarded-For: that address becomes the RemoteAddr of requests.
	// Defaults to none.
	Proxies remote.Addresses

	// Roles are the callers and what each may do. Defaults to none.
	Roles *roles.File

	// Certificate and Key are files in PEM. With them the door speaks TLS only.
	Certificate, Key string

	// ClientCA is a file in PEM with the certificates of the authorities that sign those
	// of clients. Without Roles each client needs a certificate, and may do everything.
	// With Roles a client without a certificate needs an access token.
	ClientCA string

	// Hosts are further host names that requests may have, beside localhost and loopback
	// addresses. They count only if all callers may do everything.
	Hosts []string

	// Open are the paths for which a request needs no caller.
	Open []string

	// MaxConns is the largest number of connections, half of them from one address. A
	// connection of a trusted proxy counts under the address that it tells by the PROXY
	// protocol, or under none. Defaults to 10000.
	MaxConns int

	// Proxied reports whether a request is a proxy's own question that repeats headers of
	// the proxy's user. The page of another site must not be able to make such a request;
	// a header field that browsers do not send ensures that. Defaults to none.
	Proxied func(*http.Request) bool

	// Denied gets the client's address and the reason of each refused request. Several
	// goroutines call it. Defaults to nil.
	Denied func(from string, err error)

	// Logger gets a warning when there are too many connections. Defaults to silence.
	Logger *slog.Logger
}

// An UnsafeError says why it is unsafe to listen by a Config, and what to do.
type UnsafeError struct{ Reason string }

func (e *UnsafeError) Error() string { return e.Reason }

// A Door checks what comes in by a Config. All methods are safe for concurrent use.
type Door struct {
	cfg      Config
	address  *net.TCPAddr
	everyone *roles.Role // nil if callers are told apart
	secured  atomic.Pointer[secured]
}

// New checks a Config and reads its files. The error is an *UnsafeError or a *FileError.
func New(cfg Config) (*Door, error) {
	if cfg.MaxConns == 0 {
		cfg.MaxConns = 10_000
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	d := &Door{cfg: cfg}
	local := cfg.Socket
	if !cfg.Socket {
		var err error
		if d.address, err = net.ResolveTCPAddr("tcp", cfg.Address); err != nil {
			return nil, &UnsafeError{fmt.Sprintf("the address is HOST:PORT, such as 127.0.0.1:7420: %v", err)}
		}
		local = d.address.IP != nil && d.address.IP.IsLoopback()
	}
	encrypted, identified := cfg.Certificate != "" && cfg.Key != "", cfg.Roles != nil || cfg.ClientCA != ""
	switch {
	case (cfg.Certificate == "") != (cfg.Key == ""):
		return nil, &UnsafeError{"TLS needs both the certificate and its key"}
	case cfg.ClientCA != "" && !encrypted:
		return nil, &UnsafeError{"certificates of clients need TLS: give a certificate and its key, too"}
	case !local && !encrypted && !identified && !cfg.Plaintext:
		return nil, &UnsafeError{"other machines could reach this address: give a certificate and its key, and access tokens, or a CA of clients; or listen on loopback, such as 127.0.0.1:7420"}
	case !local && !encrypted && !cfg.Plaintext:
		return nil, &UnsafeError{"other machines could reach this address, and read the access tokens on the way: give a certificate and its key; or listen on loopback, behind a proxy that speaks TLS; or confirm that a mesh encrypts what is on the way"}
	case !local && !identified:
		return nil, &UnsafeError{"other machines could reach this address, and do everything: give access tokens, or a CA of clients; or listen on loopback"}
	case !identified:
		d.everyone = roles.Everything("")
	}
	if encrypted {
		if err := d.Reload(); err != nil {
			return nil, err
		}
	}
	return d, nil
}

// Everyone reports whether all callers may do everything.
func (d *Door) Everyone() bool { return d.everyone != nil }

// Listen listens at Config.Address, with the bounds of Over.
func (d *Door) Listen() (net.Listener, error) {
	l, err := net.ListenTCP("tcp", d.address)
	if err != nil {
		return nil, err
	}
	return d.Over(l), nil
}

// Over bounds the connections of a listener, and reads the PROXY header of trusted
// proxies.
func (d *Door) Over(l net.Listener) net.Listener {
	believed := func(peer, at net.Addr) bool {
		addr, _ := remote.Node(peer.String())
		return d.cfg.Proxies.Believes(addr, at.Network() == "unix")
	}
	b := newListener(l, d.cfg.MaxConns, d.cfg.Logger, func(c net.Conn) bool { return believed(c.RemoteAddr(), c.LocalAddr()) })
	if d.cfg.Proxies.Form == remote.NotForwarded {
		return b
	}
	policy := func(o proxyproto.ConnPolicyOptions) (proxyproto.Policy, error) {
		if believed(o.Upstream, o.Downstream) {
			return proxyproto.USE, nil // the header is optional
		}
		return proxyproto.SKIP, nil // a PROXY header of others is no HTTP request
	}
	return &tellers{proxyproto.Listener{Listener: b, ConnPolicy: policy, ReadHeaderTimeout: proxyTimeout}, b}
}

// tellers is a listener with the PROXY protocol.
type tellers struct {
	proxyproto.Listener
	bounds *listener
}

func (l *tellers) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if _, ok := c.(*proxyproto.Conn); !ok {
		return c, err
	}
	return &told{Conn: c, bounds: l.bounds}, nil
}

// proxyTimeout is how long a proxy may take to send its PROXY header.
const proxyTimeout = 5 * time.Second

// remote returns the client's address, as far as proxies are trusted.
func (d *Door) remote(r *http.Request) string {
	peer, _ := remote.Node(r.RemoteAddr)
	local, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr)
	socket := ok && local.Network() == "unix"
	switch client := d.cfg.Proxies.Of(peer, socket, r.Header["X-Forwarded-For"]); {
	case client != peer:
		return client.String()
	case socket && !peer.IsValid():
		return "unix"
	}
	return r.RemoteAddr
}

// TLS returns the configuration for an http.Server, or nil if the door speaks no TLS.
func (d *Door) TLS() *tls.Config {
	if d.secured.Load() == nil {
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		return d.secured.Load().config, nil
	}}
}

// Handler passes to h the requests that the door lets in, and refuses the others.
func (d *Door) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.RemoteAddr = d.remote(r)
		if err := d.foreign(r); err != nil {
			d.refuse(w, r, http.StatusForbidden, err)
			return
		}
		if slices.Contains(d.cfg.Open, r.URL.Path) {
			unread(w, r)
			h.ServeHTTP(w, r)
			return
		}
		authenticate := func() (*roles.Role, error) { return d.authenticate(r) }
		if _, err := authenticate(); err != nil {
			w.Header().Set("WWW-Authenticate", `Bearer realm="baton"`)
			if errors.Is(err, errOutdated) {
				w.Header().Set("Connection", "close") // the client may show another certificate on its next connection
			}
			d.refuse(w, r, http.StatusUnauthorized, err)
			return
		}
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), callerKey{}, authenticate)))
	})
}

// unreadTimeout is how long the body of an unread request may take.
const unreadTimeout = time.Second

// unread bounds the time for the body of a request that is answered unread. After such an
// answer the server reads the body to reuse the connection, for as long as the client
// likes.
func unread(w http.ResponseWriter, r *http.Request) {
	if r.ProtoMajor == 1 && r.ContentLength != 0 {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(unreadTimeout)) // the server resets it for the next request
	}
}

// refuse answers a refused request, and reports it.
func (d *Door) refuse(w http.ResponseWriter, r *http.Request, status int, err error) {
	if d.cfg.Denied != nil {
		d.cfg.Denied(r.RemoteAddr, err)
	}
	code := "permission_denied"
	if status == http.StatusUnauthorized {
		code = "unauthenticated"
	}
	unread(w, r)
	reply(w, status, code, driver.Printable(err.Error()))
}

// reply writes an error as the Connect protocol does.
func reply(w http.ResponseWriter, status int, code, message string) {
	text, err := json.Marshal(struct {
		Code    string `json:"code"`
		Message string `json:"message"`
	}{code, message})
	if err != nil { // cannot be: strings have a JSON form
		panic(err)
	}
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(status)
	_, _ = w.Write(text)
}

// callerKey is the context key of the function that authenticates a request.
type callerKey struct{}

// ErrNobody is the error of Caller for a request that no door has authenticated.
var ErrNobody = errors.New("the request has no caller")

// Caller returns who sent a request that a door has let in. It authenticates again, by the
// present roles and certificates: the caller may have been removed since.
func Caller(r *http.Request) (*roles.Role, error) {
	if authenticate, ok := r.Context().Value(callerKey{}).(func() (*roles.Role, error)); ok {
		return authenticate()
	}
	return nil, ErrNobody
}

// A CredentialError says what is wrong with the credentials of a request.
type CredentialError struct{ Reason string }

func (e *CredentialError) Error() string { return e.Reason }

var (
	errNone     = &CredentialError{"an access token is missing: send it as Authorization: Bearer, or show a certificate"}
	errSeveral  = &CredentialError{"there is more than one Authorization"}
	errScheme   = &CredentialError{"Authorization is Bearer and an access token"}
	errOutdated = &CredentialError{"the certificate has expired, or its CA is not trusted any more: connect again"}
)

// authenticate returns who sends a request. An access token counts before a certificate.
func (d *Door) authenticate(r *http.Request) (*roles.Role, error) {
	if d.everyone != nil {
		return d.everyone, nil
	}
	token, err := tokenOf(r)
	switch {
	case err != nil:
		return nil, err
	case token != "" && d.cfg.Roles == nil:
		return nil, &roles.UnknownError{What: "access token"}
	case token != "":
		return d.cfg.Roles.Table().ByToken(token)
	case r.TLS == nil || len(r.TLS.VerifiedChains) == 0:
		return nil, errNone
	}
	// The handshake may be older than the roles and certificate authorities that are read
	// now.
	leaf := r.TLS.PeerCertificates[0]
	switch {
	case time.Now().After(leaf.NotAfter) || !d.secured.Load().trusts(r.TLS.VerifiedChains):
		return nil, errOutdated
	case d.cfg.Roles == nil:
		return roles.OfCertificate(leaf)
	}
	return d.cfg.Roles.Table().ByCertificate(leaf)
}

// tokenOf returns the access token of a request, or "" if there is none.
func tokenOf(r *http.Request) (string, error) {
	switch all := r.Header.Values("Authorization"); len(all) {
	case 0:
		return "", nil
	case 1:
	default:
		return "", errSeveral
	}
	scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
	if token = strings.TrimSpace(token); !strings.EqualFold(scheme, "Bearer") || token == "" {
		return "", errScheme
	}
	return token, nil
}

// A ForeignError says that the page of another site sent a request.
type ForeignError struct{ Reason string }

func (e *ForeignError) Error() string { return e.Reason }

// foreign refuses a request that a browser sends for the page of another site. It may come
// from loopback, or with the user's certificate.
func (d *Door) foreign(r *http.Request) error {
	// No browser speaks HTTP/2 without TLS, or reaches a socket. Proxies do, with any host
	// name.
	browser := r.ProtoMajor < 2 || r.TLS != nil
	if d.everyone != nil && browser && !d.cfg.Socket && !d.knows(r.Host) {
		return &ForeignError{fmt.Sprintf("the request is for the host %q, which is not this one: use localhost, or name it with --host", r.Host)}
	}
	if d.cfg.Proxied != nil && d.cfg.Proxied(r) {
		return nil
	}
	if all := r.Header.Values("Origin"); len(all) > 0 {
		origin, err := url.Parse(all[0])
		if len(all) > 1 || err != nil || origin.Host == "" || !strings.EqualFold(origin.Host, r.Host) {
			return &ForeignError{"the request is from the page of another site"}
		}
	}
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "same-origin", "none":
		return nil
	}
	// Another site may have a link to the page.
	if r.URL.Path == "/" && (r.Method == http.MethodGet || r.Method == http.MethodHead) &&
		r.Header.Get("Sec-Fetch-Mode") == "navigate" && r.Header.Get("Sec-Fetch-Dest") == "document" {
		return nil
	}
	return &ForeignError{"the request is from the page of another site"}
}

// knows reports whether a request may be for a host. Another site can point a name of its
// own to a loopback address, so unknown names are refused; addresses have no such risk.
func (d *Door) knows(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if ip, err := netip.ParseAddr(host); err == nil {
		return ip.Unmap().IsLoopback()
	}
	same := func(name string) bool { return strings.EqualFold(name, host) }
	return same("localhost") || slices.ContainsFunc(d.cfg.Hosts, same)
}
