package guard_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"

	"github.com/batonhq/baton/guard"
)

// object is what is stored: the token is part of the content, so that the objects
// of two holders have different ETags.
type object struct {
	Token int64           `json:"token,string"`
	Data  json.RawMessage `json:"data"`
}

// putObject replaces an object of a store with If-Match, unless a higher token has
// written it. It calls between between its look and its write.
func putObject(ctx context.Context, url string, p guard.Pass, data json.RawMessage, between func()) error {
	for {
		last, tag, err := getObject(ctx, url)
		if err != nil {
			return err
		}
		if last.Token > p.Token {
			return &guard.StaleError{Resource: url, Token: p.Token, Last: last.Token}
		}
		body, err := json.Marshal(object{p.Token, data})
		if err != nil {
			return err
		}
		between()
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, url, bytes.NewReader(body))
		if err != nil {
			return err
		}
		if tag == "" {
			req.Header.Set("If-None-Match", "*") // only if there still is none
		} else {
			req.Header.Set("If-Match", tag) // only if it is still the one that was read
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			return err // it may have been written: look again
		}
		resp.Body.Close()
		switch {
		case resp.StatusCode/100 == 2:
			return nil
		case resp.StatusCode != http.StatusPreconditionFailed && resp.StatusCode != http.StatusConflict:
			return errors.New(resp.Status)
		}
		// Another writer was faster. Its token decides.
	}
}

func getObject(ctx context.Context, url string) (o object, tag string, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return o, "", err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return o, "", err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusNotFound:
		return o, "", nil
	case http.StatusOK:
		return o, resp.Header.Get("ETag"), json.NewDecoder(resp.Body).Decode(&o)
	}
	return o, "", errors.New(resp.Status)
}

// Object stores with conditional writes need no guard beside them: read, compare
// the token, and write on condition that nothing was written since. docs/fencing.md
// has the conditions of other stores.
func Example_objectStore() {
	bucket := httptest.NewServer(new(objects))
	defer bucket.Close()
	ctx, report := context.Background(), bucket.URL+"/report"
	now := func() {}

	fmt.Println(putObject(ctx, report, guard.Pass{Token: 5}, json.RawMessage(`"by 5"`), func() {
		// The writer stops here, between its look and its write.
		fmt.Println(putObject(ctx, report, guard.Pass{Token: 6}, json.RawMessage(`"by 6"`), now))
	}) != nil)
	o, _, err := getObject(ctx, report)
	fmt.Printf("%s %v\n", o.Data, err)
	// Output:
	// <nil>
	// true
	// "by 6" <nil>
}

// objects is a store that, like S3, computes the ETag from the content alone.
type objects struct {
	mu   sync.Mutex
	all  map[string][]byte
	meta map[string]string

	// unconditional is a store that ignores conditions, as some do.
	unconditional bool
}

func (s *objects) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, there := s.all[r.URL.Path]
	tag := fmt.Sprintf(`"%x"`, md5.Sum(now))
	if r.Method != http.MethodPut {
		if !there {
			http.NotFound(w, r)
			return
		}
		w.Header().Set("ETag", tag)
		w.Header().Set("X-Meta-Token", s.meta[r.URL.Path])
		w.Write(now)
		return
	}
	match, none := r.Header.Get("If-Match"), r.Header.Get("If-None-Match")
	if !s.unconditional && (match != "" && (!there || match != tag) || none == "*" && there) {
		w.WriteHeader(http.StatusPreconditionFailed)
		return
	}
	body, _ := io.ReadAll(r.Body)
	if s.all == nil {
		s.all, s.meta = make(map[string][]byte), make(map[string]string)
	}
	s.all[r.URL.Path], s.meta[r.URL.Path] = body, r.Header.Get("X-Meta-Token")
}
