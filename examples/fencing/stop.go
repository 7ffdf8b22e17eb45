package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/open"
)

const (
	first, second = "first", "second" // the holders, and what they write
	stopKey       = "examples/fencing/stop"
)

// stop is the result of a holder that was stopped.
type stop struct {
	Without outcome  `json:"withoutGuard"`
	With    outcome  `json:"withGuard"`
	Steps   []string `json:"steps"`
}

type outcome struct {
	Account string `json:"account"` // its text at the end
	Stale   bool   `json:"staleWriteAccepted"`
}

func (o outcome) verdict() string {
	if o.Stale {
		return "accepted"
	}
	return "refused"
}

// page is an account behind HTTP: the last text that was put there.
type page struct {
	mu   sync.Mutex
	text string
}

func (p *page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, err := io.ReadAll(io.LimitReader(r.Body, 100))
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text = string(body)
}

func (p *page) says() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text
}

// ttlOn is short, but not so short that a busy machine loses the lease by itself.
func ttlOn(t driver.Traits) time.Duration { return max(2*time.Second, t.MinTTL) }

// stopTheHolder lets another process acquire the lock and stop.
func stopTheHolder(ctx context.Context, store driver.Locks, url string) (*stop, error) {
	var plain, guarded page
	mux := http.NewServeMux()
	mux.Handle("/plain", &plain)
	mux.Handle("/guarded", guard.HTTP(new(guard.Gate), func(*http.Request) string { return stopKey })(&guarded))
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	server := &http.Server{Handler: mux}
	go server.Serve(listener)
	defer server.Close()
	site := "http://" + listener.Addr().String()

	s := new(stop)
	tell := func(who, what string) { s.Steps = append(s.Steps, fmt.Sprintf("%-6s  %s", who, what)) }
	ctx, cancel := context.WithCancel(ctx)
	defer cancel() // ends the holder, whatever it is doing
	h, err := startHolder(ctx, order{Store: url, Site: site})
	if err != nil {
		return nil, err
	}
	defer h.wait()
	// It says so when it has the lock and has checked its lease. Then it stops.
	if _, err := h.next(); err != nil {
		return nil, err
	}
	tell(first, "holds the lock, and its lease stands")
	tell(first, "is stopped before it writes (SIGSTOP)")

	locks, err := baton.New(store, baton.Config{Owner: second, TTL: ttlOn(store.Traits())})
	if err != nil {
		return nil, err
	}
	lease, err := locks.Lock(ctx, stopKey)
	if err != nil {
		return nil, err
	}
	defer lease.Unlock()
	tell(second, "is granted the lock, with a higher token")
	accepted, err := put(ctx, site, lease, second)
	if err != nil {
		return nil, err
	}
	if accepted != (verdicts{true, true}) {
		return nil, errors.New("the present holder was refused")
	}
	tell(second, "writes")

	w, err := h.wake()
	if err != nil {
		return nil, err
	}
	tell(first, "wakes up and writes")
	s.Without = outcome{plain.says(), w.Accepted.Plain}
	s.With = outcome{guarded.says(), w.Accepted.Guarded}
	return s, nil
}

// verdicts say whether the accounts accepted a write.
type verdicts struct{ Plain, Guarded bool }

// put writes to both accounts. The context of the lease stops a request that has not
// begun. It cannot stop one that has: a process that is stopped after the last check
// still writes, which this example shows.
func put(ctx context.Context, site string, lease *baton.Lease, text string) (v verdicts, err error) {
	client := http.Client{Transport: new(guard.Transport)}
	ctx = guard.With(ctx, guard.Of(lease))
	for path, accepted := range map[string]*bool{"/plain": &v.Plain, "/guarded": &v.Guarded} {
		r, err := http.NewRequestWithContext(ctx, http.MethodPut, site+path, strings.NewReader(text))
		if err != nil {
			return v, err
		}
		answer, err := client.Do(r)
		if err != nil {
			return v, err
		}
		refused := guard.Refused(answer)
		answer.Body.Close()
		switch {
		case errors.Is(refused, guard.ErrStale):
		case answer.StatusCode == http.StatusOK:
			*accepted = true
		default:
			return v, fmt.Errorf("%s answers %s", path, answer.Status)
		}
	}
	return v, nil
}

// holderEnv makes this program the holder.
const holderEnv = "BATON_FENCING_HOLDER"

// order is the task of the holder. word is its message: that it is about to stop, and
// later the result of its write.
type order struct{ Store, Site string }

type word struct {
	Accepted verdicts
	Error    string
}

// holder is the other process.
type holder struct {
	cmd  *exec.Cmd
	said chan word
	wait func() error
}

// startHolder starts this program once more. The holder ends with ctx.
func startHolder(ctx context.Context, o order) (*holder, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	h := &holder{cmd: exec.CommandContext(ctx, self), said: make(chan word)}
	h.cmd.Env = append(os.Environ(), holderEnv+"=1")
	h.cmd.Stderr = os.Stderr
	endWithParent(h.cmd)
	in, err := h.cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := h.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := h.cmd.Start(); err != nil {
		return nil, err
	}
	h.wait = sync.OnceValue(h.cmd.Wait)
	go func() {
		defer close(h.said)
		for said := json.NewDecoder(out); ; {
			var w word
			if said.Decode(&w) != nil {
				return
			}
			select {
			case h.said <- w:
			case <-ctx.Done():
				return
			}
		}
	}()
	if err := json.NewEncoder(in).Encode(o); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *holder) next() (word, error) {
	w, ok := <-h.said
	return h.heard(w, ok)
}

func (h *holder) heard(w word, ok bool) (word, error) {
	switch {
	case !ok:
		return w, errors.Join(errors.New("the holder ended early"), h.wait())
	case w.Error != "":
		return w, errors.New("the holder: " + w.Error)
	}
	return w, nil
}

// wake continues the holder until it says the result of its write. It sends SIGCONT
// repeatedly: the holder may not have stopped at the first.
func (h *holder) wake() (word, error) {
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		if err := goOn(h.cmd.Process); err != nil {
			return word{}, err
		}
		select {
		case w, ok := <-h.said:
			return h.heard(w, ok)
		case <-again.C:
		}
	}
}

// holderMain is the other process.
func holderMain(stdin io.Reader, stdout io.Writer) int {
	say := json.NewEncoder(stdout)
	var o order
	err := json.NewDecoder(stdin).Decode(&o)
	if err == nil {
		var v verdicts
		if v, err = holdAndStop(context.Background(), o, func() error { return say.Encode(word{}) }); err == nil {
			err = say.Encode(word{Accepted: v})
		}
	}
	if err != nil {
		_ = say.Encode(word{Error: err.Error()}) // the parent may have ended
		return 1
	}
	return 0
}

func holdAndStop(ctx context.Context, o order, say func() error) (v verdicts, err error) {
	store, err := open.Store(ctx, o.Store)
	if err != nil {
		return v, err
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{Owner: first, TTL: ttlOn(store.Traits())})
	if err != nil {
		return v, err
	}
	lease, err := locks.Lock(ctx, stopKey)
	for err == nil && lease.Err() != nil { // this machine is very busy
		_ = lease.Unlock() // it was lost
		lease, err = locks.Lock(ctx, stopKey)
	}
	if err != nil {
		return v, err
	}
	defer lease.Unlock() // it is lost by then, but this process does not know
	// That was the last check.
	if err := say(); err != nil {
		return v, err
	}
	if err := stopHere(); err != nil {
		return v, err
	}
	return put(ctx, o.Site, lease, first)
}
