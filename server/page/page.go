package page

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"embed"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"mime"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/once"
)

// Verbs that the page asks Caller.May for.
const (
	// VerbList allows to see a key.
	VerbList = "list"

	// VerbBreak allows to revoke a lock, and to ask its holders to release it.
	VerbBreak = "break"
)

// A Caller is who opened the page. Its methods must be safe for concurrent use.
type Caller interface {
	Name() string

	// May returns nil if the caller may do what the verb says with the key, and else an
	// error for people.
	May(verb, key string) error

	// MaySome reports whether May may return nil for some key with that prefix.
	MaySome(verb, prefix string) bool
}

// Loopback has the host names by which a browser of this machine reaches it.
var Loopback = []string{"localhost", "127.0.0.1", "::1"}

// Config says what the page shows, and to which callers.
type Config struct {
	// Locks lists, inspects and breaks locks, and asks for their release. Required.
	Locks *baton.Locker

	// Limits lists the use of rate limits. Defaults to none: the page does not show
	// limits.
	Limits limits.Lister

	// Once lists the records of operations. Defaults to none: the page does not show them.
	Once *once.Runner

	// Recent has the events of this process. Defaults to one without events.
	Recent *Recent

	// Caller returns who sent a request. An error is answered with the status 401; then
	// the page asks for a token, and sends it as "Authorization: Bearer". It is called for
	// each request for data, and about every ten seconds while a page is open, but not for
	// the page itself. Several goroutines call it. Defaults to a caller without a name who
	// may do everything.
	Caller func(*http.Request) (Caller, error)

	// Hosts are the host names, without a port, by which a browser may reach the page.
	// Requests for others are refused, because another site can point any name to this
	// server. Defaults to all.
	Hosts []string

	// Logger gets, at the level Info, a line before and one after each break, and one for
	// each request to release a lock. Refused requests and failures of the store are
	// warnings; a break with an error is an error. Lines about a lock have "caller",
	// "remote" (the address), "key" and "reason". Defaults to silence.
	Logger *slog.Logger
}

// A Page is an http.Handler for the path "/" and those below "/page/". All methods are
// safe for concurrent use.
type Page struct {
	cfg    Config
	store  string
	poll   *poller
	kinds  []string // the lists, in the order of the tabs
	ctx    context.Context
	cancel context.CancelFunc
	asks   sync.WaitGroup
	mux    *http.ServeMux
	cross  *http.CrossOriginProtection

	mu      sync.Mutex
	closed  bool
	asking  int
	streams int
	of      map[string]int // streams by the name of the caller
}

// Bounds of one Page.
const (
	maxStreams = 200

	// maxStreamsOf is the largest number of streams of one caller. All callers without a
	// name share maxStreams.
	maxStreamsOf = 10
	maxAsking    = 100
)

// New makes a Page. It does not talk to the store before a browser asks for data.
func New(cfg Config) (*Page, error) {
	if cfg.Locks == nil {
		return nil, errors.New("page: config: Locks is missing")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.DiscardHandler)
	}
	if cfg.Recent == nil {
		cfg.Recent = NewRecent()
	}
	p := &Page{cfg: cfg, store: cfg.Locks.Traits().Store, of: map[string]int{}, mux: http.NewServeMux(), cross: http.NewCrossOriginProtection()}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.poll = newPoller(cfg)
	for _, k := range []string{kindLocks, kindLimits, kindOnce} {
		if p.poll.sources[k].read != nil {
			p.kinds = append(p.kinds, k)
		}
	}
	p.mux.HandleFunc("GET /{$}", p.document)
	p.mux.HandleFunc("POST /page/watch", p.watch)
	p.mux.HandleFunc("POST /page/break", p.breakLock)
	p.mux.HandleFunc("POST /page/ask", p.ask)
	return p, nil
}

// Close ends streams and requests to release a lock, and refuses new ones. It waits for
// the requests, for as long as baton.Lease.Unlock may take, and for reads of the store,
// but not for the streams.
func (p *Page) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.poll.close()
	p.asks.Wait()
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	_, policy := documents()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Cache-Control", "no-store")
	if r.ContentLength != 0 { // also for a refused request: the server reads its body to the end
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout)) // a server without deadlines has other bounds
	}
	if !p.known(r.Host) {
		refuse(w, http.StatusForbidden, "host", "this page is not served under that name")
		return
	}
	if err := p.cross.Check(r); err != nil {
		refuse(w, http.StatusForbidden, "origin", "the request comes from another site")
		return
	}
	p.mux.ServeHTTP(w, r)
}

// known reports whether the page is served for a Host header.
func (p *Page) known(host string) bool {
	if len(p.cfg.Hosts) == 0 {
		return true
	}
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	return slices.ContainsFunc(p.cfg.Hosts, func(h string) bool { return strings.EqualFold(h, host) })
}

//go:embed web
var web embed.FS

// documents returns the page in each language, and its Content-Security-Policy.
var documents = sync.OnceValues(func() (inLanguage map[string][]byte, policy string) {
	part := func(name string) []byte {
		text, err := web.ReadFile("web/" + name)
		if err != nil {
			panic(err) // cannot be: it is embedded
		}
		return text
	}
	style, script := part("page.css"), part("page.js")
	page := part("page.html")
	for mark, text := range map[string][]byte{"/*style*/": style, "/*script*/": script, "/*words*/": part("words.json")} {
		page = bytes.Replace(page, []byte(mark), text, 1)
	}
	inLanguage = make(map[string][]byte)
	for _, lang := range languages {
		inLanguage[lang] = bytes.Replace(page, []byte(`lang="en"`), []byte(`lang="`+lang+`"`), 1)
	}
	hash := func(text []byte) string {
		sum := sha256.Sum256(text)
		return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
	}
	policy = "default-src 'none'; script-src " + hash(script) + "; style-src " + hash(style) +
		"; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'" +
		"; require-trusted-types-for 'script'; trusted-types 'none'"
	return inLanguage, policy
})

// languages of the page. The first is the default.
var languages = []string{"en", "zh-Hans"}

// document answers with the page itself, which has no data.
func (p *Page) document(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Language")
	inLanguage, _ := documents()
	send(w, http.StatusOK, inLanguage[preferred(r.Header.Get("Accept-Language"))])
}

// send answers, with a deadline for a client that does not read. It removes the deadline
// afterwards: the connection may serve another handler.
func send(w http.ResponseWriter, status int, body []byte) {
	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) // as in watch
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // a client that has gone needs no answer
	_ = out.Flush()
	_ = out.SetWriteDeadline(time.Time{})
}

// preferred returns the page's language with the highest weight in an Accept-Language
// header.
func preferred(accept string) string {
	best, lang := 0.0, languages[0]
	for _, one := range strings.Split(accept, ",") {
		tag, weight, _ := strings.Cut(one, ";")
		q := 1.0
		if text, ok := strings.CutPrefix(strings.TrimSpace(weight), "q="); ok {
			if _, err := fmt.Sscanf(text, "%g", &q); err != nil {
				continue
			}
		}
		tag = strings.ToLower(strings.TrimSpace(tag))
		for _, l := range languages {
			base, _, _ := strings.Cut(l, "-")
			if (tag == base || strings.HasPrefix(tag, base+"-")) && q > best {
				best, lang = q, l
			}
		}
	}
	return lang
}

// A problem is the answer to a refused request.
type problem struct {
	Error   string `json:"error"` // a code, which the page translates
	Message string `json:"message"`
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	send(w, status, append(encode(problem{code, driver.Printable(message)}), '\n'))
}

// maxBody is the longest request, in bytes: a hundred holders, escaped.
const maxBody = 256 << 10

// read reads the JSON of a request into v, and authenticates its caller. If that fails,
// read has answered, and ok is false.
func (p *Page) read(w http.ResponseWriter, r *http.Request, v any) (who Caller, ok bool) {
	who = anyone{}
	if p.cfg.Caller != nil {
		var err error
		if who, err = p.cfg.Caller(r); err != nil {
			p.cfg.Logger.Warn("a request to the page was refused", "remote", r.RemoteAddr, "path", r.URL.Path, "error", err)
			w.Header().Set("WWW-Authenticate", "Bearer")
			refuse(w, http.StatusUnauthorized, "token", err.Error())
			return nil, false
		}
	}
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != "application/json" {
		refuse(w, http.StatusUnsupportedMediaType, "bad", "the body must be application/json")
		return nil, false
	}
	body := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	body.DisallowUnknownFields()
	err := body.Decode(v)
	if err == nil {
		// The server notices that a browser has gone only after it read the end of the
		// body.
		if _, err = body.Token(); errors.Is(err, io.EOF) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // the deadline would end the stream of frames
			return who, true
		}
		err = cmp.Or(err, errors.New("there is more than one value"))
	}
	if tooLong, is := errors.AsType[*http.MaxBytesError](err); is {
		refuse(w, http.StatusRequestEntityTooLarge, "bad", tooLong.Error())
		return nil, false
	}
	refuse(w, http.StatusBadRequest, "bad", err.Error())
	return nil, false
}

type anyone struct{}

func (anyone) Name() string                { return "" }
func (anyone) May(verb, key string) error  { return nil }
func (anyone) MaySome(string, string) bool { return true }

// admitStream counts one more stream of a caller. At its end call done.
func (p *Page) admitStream(who string) (done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.streams >= maxStreams || who != "" && p.of[who] >= maxStreamsOf {
		return nil, false
	}
	p.streams++
	p.of[who]++
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.streams--
		if p.of[who]--; p.of[who] == 0 {
			delete(p.of, who)
		}
	}, true
}

// admitRequest counts one more request to release a lock. At its end call done, for which
// Close waits.
func (p *Page) admitRequest() (done func(), ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.asking >= maxAsking {
		return nil, false
	}
	p.asking++
	p.asks.Add(1)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.asking--
		p.asks.Done()
	}, true
}

// errSilent replaces an error of the store, which may name hosts, users and data, for
// callers who may not see everything.
var errSilent = errors.New("the store has not answered")

// heard returns the error of the store that a caller may see.
func heard(who Caller, err error) error {
	if err == nil || who.May(VerbList, "") == nil {
		return err
	}
	return errSilent
}

const (
	// readTimeout is how long a client may take to send a body.
	readTimeout = 5 * time.Second

	// writeTimeout is how long a client may take to read an answer or a frame.
	writeTimeout = 10 * time.Second
)
