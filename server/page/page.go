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
	// VerbList is for seeing a key.
	VerbList = "list"

	// VerbBreak is for revoking a lock, and for asking its holders to release it.
	VerbBreak = "break"
)

// A Caller is who opened the page. It is safe for concurrent use.
type Caller interface {
	Name() string

	// May returns nil if the caller may do what the verb says with the key, and else an
	// error that tells people why not.
	May(verb, key string) error

	// MaySome reports whether there is a key with that prefix for which May returns nil.
	MaySome(verb, prefix string) bool
}

// Loopback are the host names under which a browser of this machine reaches it.
var Loopback = []string{"localhost", "127.0.0.1", "::1"}

// Config says what the page shows, and who may see it.
type Config struct {
	// Locks are shown, broken and asked for. Required.
	Locks *baton.Locker

	// Limits lists what is used of rate limits. Defaults to none: the page does not show
	// limits.
	Limits limits.Lister

	// Once lists the records of operations. Defaults to none.
	Once *once.Runner

	// Recent knows what happened in this process. Defaults to none.
	Recent *Recent

	// Caller tells who sent a request; an error is answered with the status 401, and the
	// page asks for a token, which it sends as "Authorization: Bearer". It is called for
	// each request for data, not for the page itself. Defaults to a caller without a name
	// who may do everything.
	Caller func(*http.Request) (Caller, error)

	// Hosts are the names, without a port, under which a browser may reach the page;
	// requests for others are refused, because a foreign site can give any name the
	// address of this server. Defaults to all.
	Hosts []string

	// Logger gets a line before and after each break, one for each request to release a
	// lock and one for each refusal, with "caller", "remote" (the address), "key" and
	// "reason". Breaks and requests are of level Info. Defaults to silence.
	Logger *slog.Logger
}

// A Page is an http.Handler for the path "/" and those below "/page/".
type Page struct {
	cfg    Config
	store  string
	poll   *poller
	kinds  []string // of lists, in the order of the tabs
	ctx    context.Context
	cancel context.CancelFunc
	asks   sync.WaitGroup
	mux    *http.ServeMux
	cross  *http.CrossOriginProtection

	mu      sync.Mutex
	closed  bool
	asking  int
	streams int
	of      map[string]int // streams, by the name of the caller
}

// Bounds of what one page does at a time.
const (
	maxStreams = 200

	// maxStreamsOf is how many streams of one caller there are. All who have no name share
	// maxStreams.
	maxStreamsOf = 10
	maxAsking    = 100
)

// New makes a Page. It does not talk to the store before a browser asks for the page.
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

// Close ends what is open: those who look are told nothing more, and requests to release a
// lock end. It waits for that, for as long as baton.Lease.Unlock may take.
func (p *Page) Close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.cancel()
	p.poll.close()
	p.asks.Wait()
}

// ServeHTTP answers a browser.
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
	if r.ContentLength != 0 { // also of one that is refused: the server reads its body to the end
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(readTimeout)) // a server that has no deadlines bounds it by other means
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

// known reports whether the page is served under the name in a Host header.
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

// documents are the page in each language, and what its browser may do with it.
var documents = sync.OnceValues(func() (inLanguage map[string][]byte, policy string) {
	part := func(name string) []byte {
		text, err := web.ReadFile("web/" + name)
		if err != nil {
			panic(err) // it is embedded
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

// languages of the page, the default first.
var languages = []string{"en", "zh-Hans"}

// document answers with the page itself, which holds no data.
func (p *Page) document(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Vary", "Accept-Language")
	inLanguage, _ := documents()
	send(w, http.StatusOK, inLanguage[preferred(r.Header.Get("Accept-Language"))])
}

// send answers, and does not wait for ever for a client that does not read. The deadline
// does not stay: the connection may go on to another handler.
func send(w http.ResponseWriter, status int, body []byte) {
	out := http.NewResponseController(w)
	_ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) // as in watch
	w.Header().Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(status)
	_, _ = w.Write(body) // who is gone needs no answer
	_ = out.Flush()
	_ = out.SetWriteDeadline(time.Time{})
}

// preferred returns the language of the page that an Accept-Language header names first.
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

// A problem is the answer to a request that is not done.
type problem struct {
	Error   string `json:"error"` // a code, which the page translates
	Message string `json:"message"`
}

func refuse(w http.ResponseWriter, status int, code, message string) {
	w.Header().Set("Content-Type", "application/json")
	send(w, status, append(encode(problem{code, driver.Printable(message)}), '\n'))
}

// maxBody is the length of the longest request, in bytes: a hundred holders, escaped.
const maxBody = 256 << 10

// read reads the JSON of a request into v and finds out who sent it. If that fails it has
// answered, and ok is false.
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
		// Only after the end of the body does the server notice that a browser has gone.
		if _, err = body.Token(); errors.Is(err, io.EOF) {
			_ = http.NewResponseController(w).SetReadDeadline(time.Time{}) // it would end the stream of frames
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

// anyone may do everything.
type anyone struct{}

func (anyone) Name() string                { return "" }
func (anyone) May(verb, key string) error  { return nil }
func (anyone) MaySome(string, string) bool { return true }

// admitStream counts one more stream of a caller, who calls done at its end.
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

// admitRequest counts one more request to release a lock. The caller calls done at its
// end, for which Close waits.
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

// errSilent is what a caller is told who may not see all that the store has: what a store
// says names hosts, users and data.
var errSilent = errors.New("the store has not answered")

// heard is what a caller is told of an error of the store.
func heard(who Caller, err error) error {
	if err == nil || who.May(VerbList, "") == nil {
		return err
	}
	return errSilent
}

const (
	// readTimeout is how long the body of a request may take.
	readTimeout = 5 * time.Second

	// writeTimeout is how long a browser that does not read is waited for.
	writeTimeout = 10 * time.Second
)
