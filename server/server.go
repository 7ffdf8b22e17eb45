package server

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"connectrpc.com/grpchealth"
	"connectrpc.com/grpcreflect"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/lockfeed"
	"github.com/batonhq/baton/ratelimit/rules"
	"github.com/batonhq/baton/server/batonv1/batonv1connect"
	"github.com/batonhq/baton/server/internal/codec"
	"github.com/batonhq/baton/server/internal/handle"
)

// MinSecret is the length of the shortest secret, in bytes.
const MinSecret = 16

// minCompress is the size of the smallest answer that is compressed, for clients that
// accept that. For smaller ones gzip costs more than the rest of the call.
const minCompress = 1024

// Config says which callers a Server serves, and how. Only Store is required.
type Config struct {
	// Store has the locks, and the records of operations if it can. The caller closes it
	// after Shutdown.
	Store driver.Locks

	// Secret is shared by all servers that accept each other's handles and ops: at least
	// MinSecret random bytes. Anyone with the secret can release the locks of others.
	// Rotate replaces it. Defaults to a random one, for this Server only.
	Secret []byte

	// Caller returns who calls, and what the caller may do. The client is told the error.
	// It is called for each request, again after a wait, and every few seconds for a
	// stream, so its answer may change. Several goroutines call it. Defaults to one caller
	// without a name that may do everything.
	Caller func(*http.Request) (Caller, error)

	// Limits answers Take. Defaults to none: Take is refused as unimplemented.
	Limits *rules.Limiter

	// MaxTTL is the longest TTL of a lease. A removed caller keeps its leases for at most
	// that long. Defaults to ten minutes, or to the store's longest if that is shorter.
	MaxTTL time.Duration

	// MaxWait is the longest wait of one call. Defaults to a minute.
	MaxWait time.Duration

	// MaxWaits is the largest number of waiting calls of one caller. Twice as many may be
	// under way. Defaults to 1000.
	MaxWaits int

	// Logger gets failures of the store as warnings. Defaults to silence.
	Logger *slog.Logger

	// Audit gets each Break and each lease that ReleaseAll ends at the level Info, and as
	// warnings each call of an unknown caller, each denial, and each cost below zero of a
	// caller with a name. Defaults to silence.
	Audit *slog.Logger
}

// A ConfigError says which field of a Config makes no sense.
type ConfigError struct {
	Field, Reason string
}

func (e *ConfigError) Error() string { return "server: config: " + e.Field + " " + e.Reason }

func (c *Config) complete() error {
	if c.Store == nil {
		return &ConfigError{"Store", "is not set"}
	}
	traits := c.Store.Traits()
	if traits.Sessions {
		return &ConfigError{"Store", fmt.Sprintf("is %s, which ties a lock to the process that took it, so that no other server could renew it: run an agent on each host (baton agent)", traits.Store)}
	}
	if n := len(c.Secret); n > 0 && n < MinSecret {
		return &ConfigError{"Secret", fmt.Sprintf("has %d bytes, fewer than %d", n, MinSecret)}
	}
	for _, f := range []struct {
		name  string
		value int64
	}{{"MaxTTL", int64(c.MaxTTL)}, {"MaxWait", int64(c.MaxWait)}, {"MaxWaits", int64(c.MaxWaits)}} {
		if f.value < 0 {
			return &ConfigError{f.name, "is negative"}
		}
	}
	if len(c.Secret) == 0 {
		c.Secret = make([]byte, 32)
		rand.Read(c.Secret) // never fails
	}
	if c.Caller == nil {
		c.Caller = func(*http.Request) (Caller, error) { return anyone{}, nil }
	}
	c.MaxTTL = cmp.Or(c.MaxTTL, 10*time.Minute)
	if traits.MaxTTL > 0 {
		c.MaxTTL = min(c.MaxTTL, traits.MaxTTL)
	}
	c.MaxWait = cmp.Or(c.MaxWait, time.Minute)
	c.MaxWaits = cmp.Or(c.MaxWaits, 1000)
	c.Logger = cmp.Or(c.Logger, slog.New(slog.DiscardHandler))
	c.Audit = cmp.Or(c.Audit, slog.New(slog.DiscardHandler))
	return nil
}

// A Server answers clients of every kind. All methods are safe for concurrent use.
type Server struct {
	cfg     Config
	store   driver.Locks
	traits  driver.Traits
	watcher driver.Watcher // nil if the store has none
	records driver.Records // likewise
	locks   *baton.Locker  // inspects, lists and breaks locks
	keys    atomic.Pointer[handle.Keys]
	handler http.Handler
	errors  *connect.ErrorWriter
	origins *http.CrossOriginProtection

	under tally // calls under way, by caller
	waits tally // waiting calls, by caller
	lists tally // lists under way, by caller

	looks          *lockfeed.Feeds
	streams, feeds tally // open streams, by caller
	health         health

	leaving  atomic.Bool   // Drain was called
	stopping chan struct{} // closed by Shutdown

	mu      sync.Mutex
	calls   int           // under way
	stops   bool          // stopping is closed
	stopped chan struct{} // closed when stops is set and no call is under way
}

// New makes a Server. It does not talk to the store. It refuses with a *ConfigError a
// config that makes no sense, and a store that ties locks to processes.
func New(cfg Config) (*Server, error) {
	if err := cfg.complete(); err != nil {
		return nil, err
	}
	s := &Server{
		cfg: cfg, store: cfg.Store, traits: cfg.Store.Traits(),
		health:  health{claim: driver.Claim{Key: "readyz/" + driver.NewID(), Owner: "readyz", Weight: driver.Whole, Capacity: driver.Whole}},
		origins: http.NewCrossOriginProtection(), stopping: make(chan struct{}), stopped: make(chan struct{}),
	}
	s.watcher, _ = driver.As[driver.Watcher](s.store)
	s.records, _ = driver.As[driver.Records](s.store)
	var err error
	if err = s.Rotate(cfg.Secret); err != nil {
		return nil, err
	}
	if s.locks, err = baton.New(s.store, baton.Config{}); err != nil {
		return nil, err
	}
	s.looks = lockfeed.New(s.locks.List)
	opts := []connect.HandlerOption{
		connect.WithCodec(codec.JSON{ContentType: "json"}), connect.WithCodec(codec.JSON{ContentType: "json; charset=utf-8"}),
		connect.WithReadMaxBytes(MaxBody), connect.WithCompressMinBytes(minCompress),
		connect.WithInterceptors(connect.UnaryInterceptorFunc(s.around)),
	}
	s.errors = connect.NewErrorWriter(opts...)
	mux := http.NewServeMux()
	mux.Handle(batonv1connect.NewLocksHandler(locksService{s}, opts...))
	mux.Handle(batonv1connect.NewLimitsHandler(limitsService{s}, opts...))
	mux.Handle(batonv1connect.NewOnceHandler(onceService{s}, opts...))
	shown := grpcreflect.NewStaticReflector(batonv1connect.LocksName, batonv1connect.LimitsName, batonv1connect.OnceName, grpchealth.HealthV1ServiceName)
	mux.Handle(taken(grpcreflect.NewHandlerV1(shown, connect.WithReadMaxBytes(MaxBody))))
	mux.Handle(taken(grpcreflect.NewHandlerV1Alpha(shown, connect.WithReadMaxBytes(MaxBody)))) // for older tools
	mux.HandleFunc(limitPath, s.limit)
	mux.HandleFunc(eventsPath, s.events)
	guarded := s.Guard(mux)
	all := http.NewServeMux()
	all.HandleFunc("GET /healthz", s.healthz)
	all.HandleFunc("GET /readyz", s.readyz)
	path, checks := taken(grpchealth.NewHandler(s, connect.WithReadMaxBytes(MaxBody), connect.WithCompressMinBytes(minCompress)))
	all.Handle(path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // not guarded: any client may ask
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(bodyTimeout))
		checks.ServeHTTP(w, r)
	}))
	all.Handle("/", guarded)
	s.handler = s.counted(all)
	return s, nil
}

// taken bounds the time in which a client must read an answer of h.
func taken(path string, h http.Handler) (string, http.Handler) {
	return path, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeTimeout))
		h.ServeHTTP(w, r)
	})
}

// Rotate replaces the secrets. From now on the first one seals, and all of them open. To
// replace a secret, take each step at all servers before the next: add the new secret
// behind the old one, put it first, remove the old one. Before the last step wait until
// the leases under the old secret have ended or were renewed: Renew answers with a handle
// by the first secret.
//
// Calls that are under way may use either secret. After an error the secrets stay as they
// were.
func (s *Server) Rotate(secrets ...[]byte) error {
	if len(secrets) == 0 {
		return &ConfigError{"Secret", "is not set"}
	}
	for _, secret := range secrets {
		if n := len(secret); n < MinSecret {
			return &ConfigError{"Secret", fmt.Sprintf("has %d bytes, fewer than %d", n, MinSecret)}
		}
	}
	keys, err := handle.NewKeys(secrets...)
	if err != nil {
		return err
	}
	s.keys.Store(&keys)
	return nil
}

// Handler returns the handler of the whole API. It can be mounted in a mux, at "/".
func (s *Server) Handler() http.Handler { return s.handler }

// Drain makes /readyz and grpc.health.v1 say that the server is being stopped. Calls are
// answered as before, so that load balancers can notice it before Shutdown. Drain reports
// whether readiness was asked for within the last minute.
func (s *Server) Drain() (watched bool) {
	s.leaving.Store(true)
	asked := s.health.asked.Load()
	return asked != nil && time.Since(*asked) < time.Minute
}

// Shutdown makes all waiting calls return at once. One with an op that has a position
// answers WAITING, so its client repeats it; the others fail as unavailable. From then on
// no call waits, /readyz says so, and renewals and releases still work. Shutdown returns
// when no call is under way, or with the error of ctx. Shut down the http.Server after
// that.
func (s *Server) Shutdown(ctx context.Context) error {
	s.mu.Lock()
	if !s.stops {
		s.stops = true
		close(s.stopping)
		if s.calls == 0 {
			close(s.stopped)
		}
	}
	s.mu.Unlock()
	select {
	case <-s.stopped:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// draining reports whether Shutdown was called.
func (s *Server) draining() bool {
	select {
	case <-s.stopping:
		return true
	default:
		return false
	}
}

// counted counts the calls under way for Shutdown.
func (s *Server) counted(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		s.begin()
		defer s.end()
		next.ServeHTTP(w, r)
	})
}

// begin and end enclose work that Shutdown waits for.
func (s *Server) begin() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
}

func (s *Server) end() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.calls--; s.calls > 0 || !s.stops {
		return
	}
	select {
	case <-s.stopped: // stopped was closed before
	default:
		close(s.stopped)
	}
}

// A tally counts what is under way, by caller.
type tally struct {
	mu sync.Mutex
	of map[string]int
}

// enter counts one more, unless there are most already.
func (t *tally) enter(name string, most int) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[name] >= most {
		return false
	}
	if t.of == nil {
		t.of = make(map[string]int)
	}
	t.of[name]++
	return true
}

func (t *tally) leave(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.of[name]--; t.of[name] == 0 {
		delete(t.of, name)
	}
}

// health caches whether the store grants locks, so that many questions to the server are
// few to the store.
type health struct {
	claim  driver.Claim // on a key of this server only; without an ID between two questions
	unsure bool         // an answer was lost, so the claim may be held
	asking sync.Mutex   // locked while the store is asked
	known  atomic.Pointer[verdict]
	asked  atomic.Pointer[time.Time] // when a client asked last
}

// A verdict is the store's last answer.
type verdict struct {
	at  time.Time
	err error
}

var errNotAsked = errors.New("the store has not answered yet")

const (
	healthFor     = time.Second
	healthTimeout = 2 * time.Second
)

func (s *Server) healthz(w http.ResponseWriter, _ *http.Request) {
	_, _ = w.Write([]byte("ok\n"))
}

func (s *Server) readyz(w http.ResponseWriter, r *http.Request) {
	Readiness(w, r, s.notReady(r.Context()))
}

// notReady returns why calls should not come here, or "" if the store grants locks and the
// server is not being stopped.
func (s *Server) notReady(ctx context.Context) string {
	now := time.Now()
	s.health.asked.Store(&now)
	if s.leaving.Load() || s.draining() {
		return "the server is being stopped"
	}
	if err := s.answers(ctx); err != nil {
		return s.reason(err)
	}
	return ""
}

// Readiness answers a readiness probe: with 200 if reason is "", and else with 503 and the
// reason, as text, or as JSON if the request accepts that.
func Readiness(w http.ResponseWriter, r *http.Request, reason string) {
	status, text := http.StatusOK, "ok"
	if reason != "" {
		status, text = http.StatusServiceUnavailable, reason
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		writeJSON(w, status, struct {
			Ready  bool   `json:"ready"`
			Reason string `json:"reason,omitempty"`
		}{reason == "", reason})
		return
	}
	http.Error(w, text, status)
}

// HealthPath is the gRPC path of grpc.health.v1, which answers as /readyz.
const HealthPath = "/" + grpchealth.HealthV1ServiceName + "/Check"

// Check implements grpchealth.Checker. The health is that of all services.
func (s *Server) Check(ctx context.Context, _ *grpchealth.CheckRequest) (*grpchealth.CheckResponse, error) {
	if s.notReady(ctx) != "" {
		return &grpchealth.CheckResponse{Status: grpchealth.StatusNotServing}, nil
	}
	return &grpchealth.CheckResponse{Status: grpchealth.StatusServing}, nil
}

// answers takes a lock of this server and releases it. While one question is under way,
// the others get the verdict before.
func (s *Server) answers(ctx context.Context) error {
	h := &s.health
	known := h.known.Load()
	if known != nil && time.Since(known.at) < healthFor {
		return known.err
	}
	before := errNotAsked
	if known != nil {
		before = known.err
	}
	if !h.asking.TryLock() {
		return before
	}
	defer h.asking.Unlock()
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), healthTimeout)
	defer cancel()
	err := s.lockOnce(call)
	h.known.Store(&verdict{time.Now(), err})
	if err != nil && (before == nil || known == nil) {
		s.cfg.Logger.Warn("the store grants no lock", "store", s.traits.Store, "error", driver.Printable(err.Error()))
	}
	return err
}

// lockOnce takes and releases a lock that no other server asks for. health.asking is
// locked.
func (s *Server) lockOnce(ctx context.Context) error {
	h := &s.health
	if h.claim.ID == "" {
		h.claim.ID = driver.NewID()
	}
	g, err := s.store.Acquire(ctx, driver.Request{Claim: h.claim, TTL: baton.DefaultTTLOf(s.traits), Retry: h.unsure})
	if h.unsure && errors.Is(err, driver.ErrLost) {
		h.claim.ID, h.unsure = "", false
		return s.lockOnce(ctx)
	}
	if err == nil {
		c := h.claim
		c.Ticket = g.Ticket
		err = s.store.Release(ctx, c)
	}
	h.unsure = err != nil && !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrDenied)
	if err == nil {
		h.claim.ID = ""
	}
	return err
}

// errNoCaller is the error of a handler that was mounted without Guard.
var errNoCaller = errors.New("server: a call without Server.Guard")
