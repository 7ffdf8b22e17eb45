package server

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
	"unicode/utf8"

	"connectrpc.com/connect"

	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/internal/lockfeed"
	"github.com/batonhq/baton/internal/roles"
)

const (
	eventsPath  = "/v1/events"
	fieldPrefix = "Baton-Prefix"

	// maxFeeds is the largest number of feeds of one caller: each reads lists.
	maxFeeds = 8

	// heartbeat is the pause after which a client gets an empty comment. Follow calls back
	// once a second, so at most five seconds pass between two lines.
	heartbeat = 4 * time.Second
)

// events sends the events of the locks below a prefix, as server-sent events.
func (s *Server) events(w http.ResponseWriter, r *http.Request) {
	prefix, err := eventsPrefix(r)
	if err != nil {
		s.writeError(w, r, s.failure(eventsPath, err))
		return
	}
	out, began := http.NewResponseController(w), false
	err = s.stream(r.Context(), &s.feeds, maxFeeds, roles.List, prefix, func(ctx context.Context, _ *call, send sender) error {
		last := time.Now()
		return s.looks.Follow(ctx, prefix, func(all []lockfeed.Event) error {
			var text bytes.Buffer
			for _, e := range all {
				data, err := json.Marshal(e)
				if err != nil {
					return err
				}
				fmt.Fprintf(&text, "id: %d\nevent: %s\ndata: %s\n\n", e.ID, e.What, data)
			}
			if text.Len() == 0 {
				if time.Since(last) < heartbeat {
					return nil
				}
				text.WriteString(":\n\n")
			}
			if !began {
				began = true
				h := w.Header()
				h.Set("Content-Type", "text/event-stream")
				h.Set("Cache-Control", "no-store")
				h.Set("X-Accel-Buffering", "no") // for nginx
			}
			err := send(func() error { _, err := w.Write(text.Bytes()); return errors.Join(err, out.Flush()) })
			last = time.Now()
			return err
		})
	})
	switch {
	case err == nil, errors.Is(err, errGone), connect.CodeOf(err) == connect.CodeCanceled:
	case !began:
		s.writeError(w, r, err)
	default:
		known := new(connect.Error)
		errors.As(err, &known) // all errors of stream are connect's
		why, _ := json.Marshal(map[string]string{"code": known.Code().String(), "message": known.Message()})
		fmt.Fprintf(w, "event: end\ndata: %s\n\n", why)
		_ = out.Flush() // stream has set a deadline
	}
}

// eventsPrefix returns the prefix that a request names. Keys do not belong into addresses.
func eventsPrefix(r *http.Request) (string, error) {
	values := r.Header.Values(fieldPrefix)
	site := r.Header.Get("Sec-Fetch-Site")
	switch {
	case r.Method != http.MethodGet:
		return "", bad("%s is asked by GET", eventsPath)
	case r.URL.RawQuery != "":
		return "", bad("%s has no query: keys do not belong into addresses, which are logged and decoded on the way. Use the header %s", eventsPath, fieldPrefix)
	case site != "" && site != "same-origin" && site != "none": // the guard checks the other methods
		return "", connect.NewError(connect.CodePermissionDenied, errors.New("a web page of another site may not call this server"))
	case len(values) > 1:
		return "", bad("the header has %s twice", fieldPrefix)
	case len(values) == 0:
		return "", nil
	case !utf8.ValidString(values[0]) || len(values[0]) > check.MaxKey:
		return "", bad("%s is UTF-8 of at most %d bytes", fieldPrefix, check.MaxKey)
	}
	return values[0], nil
}
