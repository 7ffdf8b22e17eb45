package live

import (
	"bufio"
	"context"
	"encoding/json"
	"encoding/xml"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/lab"
	"github.com/batonhq/baton/internal/language"
)

// twoQuestions are one that waits until it may go on, and one that fails.
func twoQuestions(goOn chan struct{}) []*lab.Question {
	same := lab.Text{EN: "Who holds <it>?", ZH: "谁持有 <它>？"}
	return []*lab.Question{{
		Name: "good", Ask: same, Answer: [3]lab.Text{same, same, same}, Tests: []string{"a: x"},
		Run: func(ctx context.Context, r *lab.Run) error {
			r.Lane(lab.Text{EN: "lane", ZH: "泳道"}).Begin(lab.Holds, lab.Text{})
			select {
			case <-goOn:
			case <-ctx.Done():
				return ctx.Err()
			}
			r.Table(lab.Plain("a")).Add("<b>")
			r.Say("It ended.", "结束了。")
			return nil
		},
	}, {
		Name: "bad", Ask: same, Answer: [3]lab.Text{same, same, same}, Topic: lab.Limits,
		Run: func(context.Context, *lab.Run) error { return io.ErrUnexpectedEOF },
	}}
}

func start(t *testing.T, questions []*lab.Question) (base string) {
	_, base = startPage(t, questions)
	return base
}

func startPage(t *testing.T, questions []*lab.Question) (p *Page, base string) {
	ctx, cancel := context.WithCancel(t.Context())
	p = New(ctx, questions, "secret", []string{"baton"})
	s := httptest.NewServer(p)
	t.Cleanup(func() {
		cancel()
		p.Wait()
		s.Close()
	})
	return p, s.URL + "/secret/"
}

func post(t *testing.T, url string) int {
	answer, err := http.Post(url, "", nil)
	if err != nil {
		t.Fatal(err)
	}
	answer.Body.Close()
	return answer.StatusCode
}

type event struct {
	Name, HTML, Failed string
	Running            bool
}

// watch reads events until one is as wanted.
func watch(t *testing.T, in *bufio.Scanner, wanted func(event) bool) event {
	for in.Scan() {
		data, ok := strings.CutPrefix(in.Text(), "data: ")
		if !ok {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(data), &e); err != nil {
			t.Fatal(err)
		}
		if wanted(e) {
			return e
		}
	}
	t.Fatalf("the events ended: %v", in.Err())
	return event{}
}

func TestExperimentIsSeenWhileItGoesOn(t *testing.T) {
	t.Parallel()
	goOn := make(chan struct{})
	base := start(t, twoQuestions(goOn))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	r, _ := http.NewRequestWithContext(ctx, "GET", base+"events?lang=zh", nil)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close()
	in := bufio.NewScanner(answer.Body)
	in.Buffer(nil, 1<<20)

	if code := post(t, base+"run/good"); code != http.StatusAccepted {
		t.Fatalf("run: %d", code)
	}
	e := watch(t, in, func(e event) bool { return strings.Contains(e.HTML, "<svg") })
	if !e.Running || !strings.Contains(e.HTML, "泳道") || strings.Contains(e.HTML, "<它>") {
		t.Errorf("while it goes on: %+v", e)
	}
	if code := post(t, base+"run/bad"); code != http.StatusConflict {
		t.Errorf("a second one beside it: %d", code)
	}
	close(goOn)
	e = watch(t, in, func(e event) bool { return !e.Running })
	if e.Failed != "" || !strings.Contains(e.HTML, "结束了。") || !strings.Contains(e.HTML, "&lt;b&gt;") {
		t.Errorf("at its end: %+v", e)
	}
	if code := post(t, base+"run/bad"); code != http.StatusAccepted {
		t.Errorf("run: %d", code)
	}
	e = watch(t, in, func(e event) bool { return e.Name == "bad" && !e.Running })
	if !strings.Contains(e.Failed, "unexpected EOF") {
		t.Errorf("it failed, and says %+v", e)
	}
	if code := post(t, base+"run/none"); code != http.StatusNotFound {
		t.Errorf("no question: %d", code)
	}
}

// A question that is started again when it has just ended is not shown as ended.
func TestStartAfterAnEnd(t *testing.T) {
	t.Parallel()
	p, base := startPage(t, twoQuestions(nil))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var look sync.WaitGroup
	for range 8 {
		look.Go(func() {
			for ctx.Err() == nil {
				p.mu.Lock()
				if s := p.states["bad"]; s.Running != (p.running == "bad") {
					t.Errorf("it is shown as running: %v; %q runs", s.Running, p.running)
					cancel()
				}
				p.mu.Unlock()
			}
		})
	}
	for accepted := 0; accepted < 50 && ctx.Err() == nil; {
		if post(t, base+"run/bad") == http.StatusAccepted {
			accepted++
		}
	}
	cancel()
	look.Wait()
}

// Memory is that of the last run of each question.
func TestManyRuns(t *testing.T) {
	t.Parallel()
	p, base := startPage(t, twoQuestions(nil))
	for range 20 {
		ctx, hangUp := context.WithCancel(t.Context())
		r, _ := http.NewRequestWithContext(ctx, "GET", base+"events", nil)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		in := bufio.NewScanner(answer.Body)
		in.Buffer(nil, 1<<20)
		if code := post(t, base+"run/bad"); code != http.StatusAccepted {
			t.Fatalf("run: %d", code)
		}
		watch(t, in, func(e event) bool { return e.Failed != "" && !e.Running })
		p.mu.Lock()
		ended := p.ended
		p.mu.Unlock()
		<-ended
		hangUp()
		answer.Body.Close()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		p.mu.Lock()
		watching, known := len(p.changed), len(p.states)
		p.mu.Unlock()
		if watching == 0 && known == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d browsers that have gone are told, of %d questions", watching, known)
		}
	}
}

// A page that is still open says what to do when the laboratory ends.
func TestEndingLaboratoryStartsNothing(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	p := New(ctx, twoQuestions(nil), "secret", nil)
	cancel()
	p.Wait()
	for l, want := range map[string]string{"en": "baton lab serve", "zh": "实验室已结束"} {
		w := httptest.NewRecorder()
		r := httptest.NewRequest("POST", "http://127.0.0.1/secret/run/bad?lang="+l, nil)
		if p.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable || !strings.Contains(w.Body.String(), want) {
			t.Errorf("%s: %d, %s", l, w.Code, w.Body)
		}
	}
}

func TestPageIsWellFormed(t *testing.T) {
	t.Parallel()
	base := start(t, twoQuestions(nil))
	for _, l := range language.All {
		answer, err := http.Get(base + "?lang=" + string(l))
		if err != nil {
			t.Fatal(err)
		}
		d := xml.NewDecoder(answer.Body)
		d.Strict = true
		elements := map[string]int{}
		for {
			token, err := d.Token()
			if err == io.EOF {
				break
			}
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := token.(xml.StartElement); ok {
				elements[e.Name.Local]++
			}
		}
		answer.Body.Close()
		if elements["section"] != 2 || elements["button"] != 2 {
			t.Errorf("%s: %v", l, elements)
		}
	}
}

// Other machines, other pages and other users of this machine start nothing.
func TestStrangersAreRefused(t *testing.T) {
	t.Parallel()
	base := start(t, twoQuestions(nil))
	for name, change := range map[string]func(*http.Request){
		"another name":  func(r *http.Request) { r.Host = "evil.example" },
		"another page":  func(r *http.Request) { r.Header.Set("Origin", "http://evil.example") },
		"no secret":     func(r *http.Request) { r.URL.Path = "/run/good" },
		"wrong secret":  func(r *http.Request) { r.URL.Path = "/secre/run/good" },
		"a mere look":   func(r *http.Request) { r.Method = http.MethodGet },
		"another frame": func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
	} {
		r, err := http.NewRequest(http.MethodPost, base+"run/good", nil)
		if err != nil {
			t.Fatal(err)
		}
		change(r)
		answer, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		answer.Body.Close()
		if answer.StatusCode < 400 {
			t.Errorf("%s: %d", name, answer.StatusCode)
		}
	}
}
