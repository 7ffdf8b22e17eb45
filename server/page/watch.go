package page

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/jsonlist"
)

const (
	pageRows = 50

	// hottest is how many of the hottest keys are shown.
	hottest = 5

	// maxSent is the largest number of events in one frame.
	maxSent = 40

	// frameEvery is the shortest time between two frames.
	frameEvery = 100 * time.Millisecond

	// heartbeat is the longest time between two frames. A browser without a frame for
	// longer knows that the connection is gone.
	heartbeat = 5 * time.Second

	// recheck is how often a stream authenticates its caller again.
	recheck = 10 * time.Second
)

type look struct {
	Kind   string `json:"kind"` // of the list; "": none
	Prefix string `json:"prefix"`
	Order  string `json:"order"` // one of orders; "": by key
	From   int    `json:"from"`  // the first row
	Open   string `json:"open"`  // the lock in detail; "": none
	Seq    int64  `json:"seq"`   // the last event that the browser has
}

func (l look) check(kinds []string) error {
	switch {
	case l.Kind != "" && !slices.Contains(kinds, l.Kind):
		return fmt.Errorf("there is no list of %q", l.Kind)
	case l.Order != "" && !slices.Contains(orders[l.Kind], l.Order):
		return fmt.Errorf("there is no order %q", l.Order)
	case l.From < 0 || l.Seq < 0:
		return fmt.Errorf("a number is below zero")
	case len(l.Prefix) > check.MaxKey:
		return fmt.Errorf("the prefix is longer than a key can be")
	case l.Open != "":
		return check.Key(l.Open)
	}
	return nil
}

// listView is the state of a list, without its rows.
type listView struct {
	Total int   `json:"total"` // rows that the caller may see
	From  int   `json:"from"`  // the first on the screen
	More  bool  `json:"more,omitempty"`
	Read  bool  `json:"read"` // it was read at least once
	At    int64 `json:"at"`   // when the last read began
	Took  int64 `json:"took"` // ms
	Every int64 `json:"every"`
	SoFar int64 `json:"soFar,omitempty"` // rows read so far, during the first read
}

// hello is the first message to a browser.
type hello struct {
	Store  string   `json:"store"`
	Kinds  []string `json:"kinds"`
	Caller string   `json:"caller"`
	Start  string   `json:"start"` // when this Page began: with another one the events begin again
}

// watch sends frames, one JSON object a line, until the browser goes. A frame has the
// changes since the one before.
func (p *Page) watch(w http.ResponseWriter, r *http.Request) {
	var want look
	who, ok := p.read(w, r, &want)
	if !ok {
		return
	}
	if err := want.check(p.kinds); err != nil {
		refuse(w, http.StatusBadRequest, "bad", err.Error())
		return
	}
	if want.Kind == "" {
		want.Prefix = "" // no list is read
	}
	if !who.MaySome(VerbList, want.Prefix) {
		err := cmp.Or(who.May(VerbList, want.Prefix), errors.New("nothing below may be listed"))
		p.cfg.Logger.Warn("a caller of the page was denied", "caller", driver.Printable(who.Name()), "remote", r.RemoteAddr, "key", driver.Printable(want.Prefix), "error", text(err))
		refuse(w, http.StatusForbidden, "denied", err.Error())
		return
	}
	done, ok := p.admitStream(who.Name())
	if !ok {
		refuse(w, http.StatusServiceUnavailable, "busy", "as many browsers look at this page, or of this caller, as may")
		return
	}
	defer done()

	v := &viewer{wake: make(chan struct{}, 1)}
	if want.Kind != "" {
		v.list = listID{want.Kind, want.Prefix}
	}
	p.poll.join(v)
	defer p.poll.leave(v)
	w.Header().Set("Content-Type", "application/x-ndjson")
	out := http.NewResponseController(w)
	s := &screen{page: p, viewer: v, look: want, who: who, sent: map[string][]byte{}, rows: map[string][]byte{}}
	beat := time.NewTicker(heartbeat)
	defer beat.Stop()
	asked := time.Now()
	for {
		line := s.frame()
		_ = out.SetWriteDeadline(time.Now().Add(writeTimeout)) // a server without deadlines blocks until the connection ends
		if _, err := w.Write(line); err != nil {
			return
		}
		if out.Flush() != nil {
			return
		}
		pause := time.NewTimer(frameEvery)
		select {
		case <-r.Context().Done():
		case <-p.ctx.Done():
		case <-pause.C:
		}
		select {
		case <-r.Context().Done():
			return
		case <-p.ctx.Done():
			return
		case <-v.wake:
		case <-beat.C:
		}
		if p.cfg.Caller != nil && time.Since(asked) > recheck {
			var err error
			if s.who, err = p.cfg.Caller(r); err != nil {
				return // the browser connects again, and gets the reason
			}
			asked = time.Now()
		}
	}
}

// A screen makes the frames of one browser.
type screen struct {
	page   *Page
	viewer *viewer
	look   look
	who    Caller

	failed string            // the store's last error
	sent   map[string][]byte // the last sent parts, by name
	rows   map[string][]byte // of the list
}

func (s *screen) visible(key string) bool { return s.who.May(VerbList, key) == nil }

// frame returns a line with the changes since the frame before.
func (s *screen) frame() []byte {
	p := s.page
	parts := map[string]json.RawMessage{}
	part := func(name string, v any) {
		text := encode(v)
		if !bytes.Equal(s.sent[name], text) {
			s.sent[name], parts[name] = text, text
		}
	}
	part("hello", hello{p.store, p.kinds, s.who.Name(), p.poll.start.UTC().Format(time.RFC3339Nano)})

	var events []event
	events, s.look.Seq = p.cfg.Recent.since(s.look.Seq, maxSent, s.visible)
	if len(events) > 0 {
		parts["events"] = encode(events)
	}

	p.poll.mu.Lock()
	failed := p.poll.failed
	shown := []*row{}
	hot := []count{}
	if l := p.poll.lists[s.viewer.list]; l != nil {
		var about listView
		shown, about, hot = s.list(l)
		if l.err != nil {
			failed = l.err
		}
		part("list", about)
	}
	var detail *detailView
	s.viewer.keys = s.viewer.keys[:0:0]
	if s.look.Kind == kindLocks {
		for _, r := range shown {
			s.viewer.keys = append(s.viewer.keys, r.key)
		}
	}
	if key := s.look.Open; key != "" && s.visible(key) {
		request := baton.AskPrefix + key
		s.viewer.keys = append(s.viewer.keys, key)
		if len(request) <= check.MaxKey {
			s.viewer.keys = append(s.viewer.keys, request)
		}
		if r := p.poll.detail(key); r != nil {
			d := viewDetail(r)
			d.Asked = append(d.Asked, p.poll.requests(key)...)
			if err := s.who.May(VerbBreak, key); err != nil {
				d.Denied = text(err)
			}
			detail = &d
		} else {
			signal(p.poll.inspectSoon)
		}
	}
	now := p.poll.now()
	p.poll.mu.Unlock()

	if s.look.Kind == kindLimits {
		hot = p.cfg.Recent.hottest(hottest, s.visible)
	}
	keys := make([]string, len(shown))
	rows, changed := map[string][]byte{}, []json.RawMessage{}
	for i, r := range shown {
		keys[i] = r.key
		rows[r.key] = encode(r.view)
		if !bytes.Equal(rows[r.key], s.rows[r.key]) {
			changed = append(changed, rows[r.key])
		}
	}
	s.rows = rows
	part("keys", keys)
	if len(changed) > 0 {
		parts["rows"] = encode(changed)
	}
	part("hot", hot)
	part("detail", detail)
	if said := text(failed); said != s.failed {
		if s.failed = said; said != "" && heard(s.who, failed) != failed {
			p.cfg.Logger.Warn("the store has not answered the page", "caller", driver.Printable(s.who.Name()), "error", said)
		}
	}
	part("failed", text(heard(s.who, failed)))
	parts["now"] = encode(now.Milliseconds())
	return append(encode(parts), '\n')
}

// list returns the rows of l on the screen. poller.mu is locked.
func (s *screen) list(l *list) (shown []*row, about listView, hot []count) {
	all := l.sort(s.look.Order)
	if s.page.cfg.Caller != nil {
		all = slices.DeleteFunc(slices.Clone(all), func(r *row) bool { return !s.visible(r.key) })
	}
	s.look.From = max(0, min(s.look.From, (len(all)-1)/pageRows*pageRows))
	about = listView{Total: len(all), From: s.look.From, Read: l.rows != nil, At: l.at.Milliseconds(), Every: (l.due - l.at).Milliseconds()}
	if s.visible(l.prefix) { // else these would tell of keys that the caller may not see
		about.More, about.Took = l.more, l.took.Milliseconds()
		if l.reading && l.rows == nil {
			about.SoFar = l.soFar.Load()
		}
	}
	hot = []count{}
	if l.kind == kindLocks {
		for _, r := range l.sort(onlyWaiting) {
			if len(hot) == hottest {
				break
			}
			if !strings.HasPrefix(r.key, baton.AskPrefix) && s.visible(r.key) {
				hot = append(hot, count{named: name(r.key), N: r.rank[0]})
			}
		}
	}
	return all[s.look.From:min(s.look.From+pageRows, len(all))], about, hot
}

// encode returns the JSON of a value of this package. A nil slice becomes [], for the
// page's script.
func encode(v any) []byte {
	text, err := json.Marshal(jsonlist.Filled(v))
	if err != nil {
		panic(err)
	}
	return text
}
