package guard_test

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/batonhq/baton/guard"
)

// bucket is an object whose content is the list of its writers.
type bucket struct{ url string }

func newBucket(t *testing.T, s *objects) bucket {
	server := httptest.NewServer(s)
	t.Cleanup(server.Close)
	return bucket{server.URL + "/r"}
}

func (b bucket) write(ctx context.Context, p guard.Pass, between func()) error {
	// What is written depends on what was read, as usual.
	first := true
	for {
		h, err := b.history(ctx)
		if err != nil {
			return err
		}
		data, err := json.Marshal(append(h, p.Token))
		if err != nil {
			return err
		}
		seen := len(h)
		err = putObject(ctx, b.url, p, data, func() {
			if first {
				first = false
				between()
			}
		})
		if err != nil {
			return err
		}
		if h, err = b.history(ctx); err != nil || len(h) > seen {
			return err
		}
	}
}

func (b bucket) history(ctx context.Context) (h []int64, err error) {
	o, _, err := getObject(ctx, b.url)
	if err == nil && o.Data != nil {
		err = json.Unmarshal(o.Data, &h)
	}
	return h, err
}

func TestObjectStore(t *testing.T) {
	t.Parallel()
	holds(t, newBucket(t, new(objects)))
}

// Planted: a store that takes every write.
func TestObjectStoreWithoutConditionsIsCaught(t *testing.T) {
	t.Parallel()
	b := newBucket(t, &objects{unconditional: true})
	put := func(token int64, between func()) {
		if err := putObject(t.Context(), b.url, pass(token, ""), json.RawMessage("[]"), between); err != nil {
			t.Fatal(err)
		}
	}
	put(5, func() { put(6, func() {}) })
	if o, _, err := getObject(t.Context(), b.url); err != nil || o.Token != 5 {
		t.Errorf("a store without conditions passes for sound: %+v, %v", o, err)
	}
}

// Why the token is part of the content: in the metadata it changes no ETag, and a
// stale writer does not see that a later holder has written the same content again.
func TestObjectStoreTokenInMetadataIsCaught(t *testing.T) {
	t.Parallel()
	server := httptest.NewServer(new(objects))
	t.Cleanup(server.Close)
	put := func(token, tag, body string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, server.URL+"/r", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("X-Meta-Token", token)
		if tag != "" {
			req.Header.Set("If-Match", tag)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		return resp.StatusCode
	}
	put("4", "", "same")
	resp, err := http.Get(server.URL + "/r")
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	seen := resp.Header.Get("ETag") // read by the holder of 5, which stops here
	put("6", seen, "same")
	if status := put("5", seen, "stale"); status != http.StatusOK {
		t.Errorf("%d: the store's ETag changes with its metadata, which S3's does not", status)
	}
}
