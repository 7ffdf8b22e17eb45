package httponce

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
)

// A Source finds the operation of a request.
type Source struct {
	key    func(r *http.Request, body []byte) (string, error) // "" if there is none
	body   bool                                               // key reads the body
	anyone bool                                               // the key alone identifies the request
}

// Field is a header field that the client sets, to a new value for each operation. The
// value may be quoted, as in the draft: "x" and x are the same key.
func Field(name string) Source {
	return Source{key: func(r *http.Request, _ []byte) (string, error) {
		text, err := single(r, name)
		if err != nil || !strings.HasPrefix(text, `"`) {
			return text, err
		}
		return unquote(name, text)
	}}
}

// IdempotencyKey is the field Idempotency-Key.
func IdempotencyKey() Source { return Field("Idempotency-Key") }

// Delivery is a header field in which a sender of webhooks identifies a delivery, or an
// event, and which it repeats: "X-GitHub-Delivery", "Webhook-Id" of the Standard
// Webhooks, "Svix-Id". Bodies are not compared: senders update them. An event for two
// endpoints has one identity, so the path belongs to the key.
func Delivery(name string) Source {
	return Source{anyone: true, key: func(r *http.Request, _ []byte) (string, error) { return single(r, name) }}
}

// StripeEvent is the id of the event in the body of Stripe's webhooks. Bodies are not
// compared: pending_webhooks differs in a repetition.
func StripeEvent() Source {
	return Source{anyone: true, body: true, key: func(_ *http.Request, body []byte) (string, error) {
		var event struct {
			ID string `json:"id"`
		}
		if err := json.Unmarshal(body, &event); err != nil {
			return "", fmt.Errorf("the body is no event: %w", err)
		}
		return event.ID, nil
	}}
}

// single is the value of a field that must not occur twice.
func single(r *http.Request, name string) (string, error) {
	switch values := r.Header.Values(name); len(values) {
	case 0:
		return "", nil
	case 1:
		text := strings.TrimSpace(values[0])
		if text == "" {
			return "", fmt.Errorf("the field %s is empty", name)
		}
		return text, nil
	default:
		return "", fmt.Errorf("the field %s is there %d times", name, len(values))
	}
}

// unquote parses a String of RFC 9651.
func unquote(name, text string) (string, error) {
	var key strings.Builder
	for i := 1; i < len(text); i++ {
		switch c := text[i]; {
		case c == '"' && i == len(text)-1:
			if key.Len() == 0 {
				return "", fmt.Errorf("the field %s is empty", name)
			}
			return key.String(), nil
		case c == '\\' && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\\'):
			i++
			key.WriteByte(text[i])
		case c == '"' || c == '\\' || c < ' ' || c > '~':
			return "", errors.New("the field " + name + " is not a quoted string and nothing else")
		default:
			key.WriteByte(c)
		}
	}
	return "", errors.New("the field " + name + " has no quote at its end")
}
