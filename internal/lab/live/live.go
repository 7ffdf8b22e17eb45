// Package live is the laboratory as a page in a browser: all questions, a button for each,
// and the picture while the experiment goes on.
package live

import (
	"bytes"
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/internal/lab"
	"github.com/batonhq/baton/internal/language"
	"github.com/batonhq/baton/internal/markup"
)

//go:embed live.css
var style string

//go:embed live.js
var script string

// A Page serves the laboratory below one path that nobody can guess, "/SECRET/". It makes
// one experiment at a time. It may be used by several browsers.
type Page struct {
	questions []*lab.Question
	secret    string
	options   lab.Options
	ctx       context.Context
	handler   http.Handler

	mu      sync.Mutex
	running string                 // "": none
	states  map[string]state       // by question: the last
	changed map[chan struct{}]bool // of those who watch; each has room for one
	ended   chan struct{}          // closed when nothing runs any more
}

// state is what is known of a question.
type state struct {
	Name    string `json:"name"`
	Running bool   `json:"running"`
	Failed  string `json:"failed,omitempty"`
	Number  int    `json:"-"` // rises with each change

	record []byte // as JSON
}

// New makes a Page. Experiments end with ctx.
func New(ctx context.Context, questions []*lab.Question, secret string, command []string) *Page {
	p := &Page{
		questions: questions, secret: secret, options: lab.Options{Command: command}, ctx: ctx,
		states: map[string]state{}, changed: map[chan struct{}]bool{}, ended: make(chan struct{}),
	}
	close(p.ended)
	mux := http.NewServeMux()
	base := "/" + secret
	mux.HandleFunc("GET "+base+"/{$}", func(w http.ResponseWriter, r *http.Request) { p.front(w, languageOf(r)) })
	mux.HandleFunc("GET "+base+"/live.css", text("text/css", style))
	mux.HandleFunc("GET "+base+"/live.js", text("text/javascript", script))
	mux.HandleFunc("POST "+base+"/run/{name}", p.run)
	mux.HandleFunc("GET "+base+"/events", p.events)
	p.handler = http.NewCrossOriginProtection().Handler(mux)
	return p
}

// Wait waits until no experiment runs, after the context of New has ended.
func (p *Page) Wait() {
	p.mu.Lock()
	ended := p.ended
	p.mu.Unlock()
	<-ended
}

// ServeHTTP answers only requests to an address of this machine, so that no page elsewhere
// reaches it under a name of its own.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host, _, err := net.SplitHostPort(r.Host)
	if err != nil {
		host = r.Host
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		http.Error(w, "this page is for this machine only", http.StatusForbidden)
		return
	}
	h := w.Header()
	h.Set("Content-Security-Policy", "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Cache-Control", "no-store")
	p.handler.ServeHTTP(w, r)
}

func text(kind, content string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", kind+"; charset=utf-8")
		_, _ = w.Write([]byte(content)) // the browser has gone
	}
}

func languageOf(r *http.Request) language.Language {
	if r.URL.Query().Get("lang") == string(language.Chinese) {
		return language.Chinese
	}
	return language.English
}

var words = struct{ title, lead, run, running, busy, ended, other, tests, list lab.Text }{
	title:   lab.Text{EN: "Baton: the laboratory", ZH: "Baton：实验室"},
	lead:    lab.Text{EN: "Each question is answered by an experiment on this machine, with real servers.", ZH: "每个问题都由本机上的一次实验来回答，用的是真实的服务器。"},
	run:     lab.Text{EN: "Run", ZH: "运行"},
	running: lab.Text{EN: "running …", ZH: "运行中……"},
	busy:    lab.Text{EN: "one at a time; running: ", ZH: "一次只做一个；正在运行："},
	ended:   lab.Text{EN: "The laboratory has ended, or is out of reach. Start it with baton lab serve, and open the address that it prints.", ZH: "实验室已结束，或无法连接。请运行 baton lab serve，并打开它打印的地址。"},
	other:   lab.Text{EN: "简体中文", ZH: "English"},
	tests:   lab.Text{EN: "The test behind it:", ZH: "背后的测试："},
	list:    lab.Text{EN: "Questions", ZH: "问题"},
}

// front is the page itself.
func (p *Page) front(w http.ResponseWriter, l language.Language) {
	var b bytes.Buffer
	m := markup.New(&b)
	m.Raw("<!doctype html>\n")
	m.Start("html", "lang", l.Tag())
	m.Inside("head", func() {
		m.Empty("meta", "charset", "utf-8")
		m.Empty("meta", "name", "viewport", "content", "width=device-width")
		m.Element("title", words.title.In(l))
		m.Empty("link", "rel", "stylesheet", "href", "live.css")
		m.Empty("link", "rel", "icon", "href", "data:,")
	})
	m.Start("body", "data-lang", l, "data-running", words.running.In(l), "data-ended", words.ended.In(l))
	m.Inside("header", func() {
		m.Element("h1", words.title.In(l))
		other := language.Chinese
		if l == language.Chinese {
			other = language.English
		}
		m.Element("a", words.other.In(l), "href", "?lang="+string(other), "class", "language")
	})
	m.Element("p", words.lead.In(l))
	m.Element("p", "", "class", "connection", "role", "alert")
	m.Start("nav", "aria-label", words.list.In(l))
	for _, t := range lab.Topics {
		of := slices.DeleteFunc(slices.Clone(p.questions), func(q *lab.Question) bool { return q.Topic != t })
		if len(of) == 0 {
			continue
		}
		m.Element("h2", t.Title().In(l))
		m.Start("ul")
		for _, q := range of {
			m.Inside("li", func() { m.Element("a", q.Ask.In(l), "href", "#"+q.Name) })
		}
		m.End()
	}
	m.End()
	m.Start("main")
	for _, q := range p.questions {
		m.Raw("\n")
		m.Start("section", "id", q.Name)
		m.Element("h2", q.Ask.In(l))
		m.Start("ol")
		for _, line := range q.Answer {
			m.Element("li", line.In(l))
		}
		m.End()
		m.Start("p")
		m.Element("button", words.run.In(l), "type", "button", "data-run", q.Name)
		m.Text(" ")
		m.Element("code", "baton lab run "+q.Name)
		m.Text(" ")
		m.Element("span", "", "class", "state", "role", "status")
		m.End()
		m.Element("div", "", "class", "result")
		m.Start("details")
		m.Element("summary", words.tests.In(l))
		for _, test := range q.Tests {
			m.Start("p")
			m.Element("code", test)
			m.End()
		}
		m.End()
		m.End()
	}
	m.End()
	m.Element("script", "", "src", "live.js")
	m.End()
	m.End()
	if err := m.Flush(); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	text("text/html", b.String())(w, nil)
}

// run begins an experiment.
func (p *Page) run(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	i := slices.IndexFunc(p.questions, func(q *lab.Question) bool { return q.Name == name })
	if i < 0 {
		http.Error(w, "there is no such question", http.StatusNotFound)
		return
	}
	p.mu.Lock()
	other, ending := p.running, p.ctx.Err() != nil
	ended := make(chan struct{})
	if other == "" && !ending {
		p.running, p.ended = name, ended
		p.tell(name, func(s *state) { *s = state{Name: name, Running: true, Number: s.Number} })
	}
	p.mu.Unlock()
	switch {
	case ending:
		http.Error(w, words.ended.In(languageOf(r)), http.StatusServiceUnavailable)
		return
	case other != "":
		http.Error(w, words.busy.In(languageOf(r))+other, http.StatusConflict)
		return
	}
	go func() {
		defer close(ended)
		o := p.options
		o.Changed = func(record *lab.Record) {
			b := stored(record)
			p.mu.Lock()
			defer p.mu.Unlock()
			p.tell(name, func(s *state) { s.record = b })
		}
		record, err := lab.Do(p.ctx, p.questions[i], o)
		p.mu.Lock()
		defer p.mu.Unlock()
		p.running = ""
		p.tell(name, func(s *state) {
			s.Running, s.record = false, stored(record)
			if err != nil {
				s.Failed = err.Error()
			}
		})
	}()
	w.WriteHeader(http.StatusAccepted)
}

func stored(r *lab.Record) []byte {
	b, err := json.Marshal(r)
	if err != nil {
		return nil // texts and numbers: there is none that JSON does not have, but infinity
	}
	return b
}

// tell changes what is known of a question, and wakes those who watch. The mutex is held.
func (p *Page) tell(name string, change func(*state)) {
	s := p.states[name]
	change(&s)
	s.Number++
	p.states[name] = s
	for c := range p.changed {
		select {
		case c <- struct{}{}:
		default: // it looks at all anyway
		}
	}
}

// pace is how often a browser is told of changes, at most.
const pace = 100 * time.Millisecond

// events tells a browser what is known now, and then what changes.
func (p *Page) events(w http.ResponseWriter, r *http.Request) {
	l := languageOf(r)
	width := lab.Wide
	if r.URL.Query().Get("width") == "narrow" {
		width = lab.Narrow
	}
	changed := make(chan struct{}, 1)
	changed <- struct{}{}
	p.mu.Lock()
	p.changed[changed] = true
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.changed, changed)
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	flush := http.NewResponseController(w)
	seen := map[string]int{}
	for {
		select {
		case <-r.Context().Done():
			return
		case <-p.ctx.Done():
			return
		case <-changed:
		}
		p.mu.Lock()
		var fresh []state
		for name, s := range p.states {
			if s.Number > seen[name] {
				seen[name] = s.Number
				fresh = append(fresh, s)
			}
		}
		p.mu.Unlock()
		for _, s := range fresh {
			if err := p.send(w, s, l, width); err != nil {
				return // the browser has gone
			}
		}
		if flush.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(pace):
		}
	}
}

// send sends the state of a question, with its picture and its tables.
func (p *Page) send(w http.ResponseWriter, s state, l language.Language, width int) error {
	i := slices.IndexFunc(p.questions, func(q *lab.Question) bool { return q.Name == s.Name })
	event := struct {
		state
		HTML string `json:"html"`
	}{state: s}
	var record lab.Record
	if len(s.record) > 0 && json.Unmarshal(s.record, &record) == nil {
		event.HTML = show(&record, p.questions[i].Ask.In(l), l, width)
	}
	b, err := json.Marshal(event)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "data: %s\n\n", b)
	return err
}

// show is a record as HTML.
func show(r *lab.Record, title string, l language.Language, width int) string {
	var b strings.Builder
	if r.Draw(&b, title, l, width) != nil {
		b.Reset() // nothing to be drawn yet
	}
	m := markup.New(&b)
	for _, t := range r.Tables {
		m.Start("div", "class", "table")
		m.Start("table")
		m.Start("tr")
		for _, c := range t.Columns {
			m.Element("th", c.In(l))
		}
		m.End()
		for _, row := range t.Rows {
			m.Start("tr")
			for _, c := range row {
				m.Element("td", c.In(l))
			}
			m.End()
		}
		m.End()
		m.End()
	}
	for _, s := range r.Says {
		m.Element("p", s.In(l))
	}
	if m.Flush() != nil {
		return ""
	}
	return b.String()
}
