package httplimit

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/batonhq/baton/ratelimit/internal/front"
)

// A Key says what a request is counted under. The zero Key is Client.
//
// Different values of clients never give the same key, and no key is too long for a
// store: unprintable characters are escaped, long values hashed.
type Key struct {
	of func(r *http.Request, client func() string) string // "" if it is missing
}

// Client is the client's address: "192.0.2.1", "2001:db8::/64", or "unknown" for a
// connection without an address, such as one by a Unix socket.
func Client() Key {
	return Key{func(_ *http.Request, client func() string) string { return client() }}
}

// Header is the first value of a header: "x-tenant=acme". The Key is missing if that is
// empty. Authorization, Proxy-Authorization and Cookie are hashed. All spellings of one
// Authorization count as one: the case of its scheme and the space around it do not
// matter.
func Header(name string) Key { return header(name, front.Part) }

// SecretHeader is Header for a secret value, such as an API key. The value is hashed,
// because the store and errors show keys.
func SecretHeader(name string) Key { return header(name, front.Secret) }

func header(name string, part func(name, value string) string) Key {
	name = textproto.CanonicalMIMEHeaderKey(name)
	lower := strings.ToLower(name)
	part = front.Careful(lower, part)
	return Key{func(r *http.Request, _ func() string) string {
		value := r.Header.Get(name)
		if name == "Host" {
			value = r.Host
		}
		if value == "" {
			return ""
		}
		return part(lower, value)
	}}
}

// Route is the method and the pattern by which an http.ServeMux has found the handler:
// "GET /items/%7Bid%7D". HEAD is counted as GET. The Key is missing if there is no
// pattern, as in front of the ServeMux: wrap the handlers behind it, or use RouteIn.
func Route() Key {
	return Key{func(r *http.Request, _ func() string) string { return route(r.Method, r.Pattern) }}
}

// RouteIn is the Route that mux will find. The Key is missing if mux will find no
// handler.
func RouteIn(mux *http.ServeMux) Key {
	return Key{func(r *http.Request, _ func() string) string {
		_, pattern := mux.Handler(r)
		return route(r.Method, pattern)
	}}
}

func route(method, pattern string) string {
	if pattern == "" {
		return ""
	}
	// The method of a pattern decides; "GET" also matches HEAD.
	if strings.ContainsAny(pattern, " \t") {
		return front.Part("", pattern)
	}
	switch method {
	case http.MethodHead, "":
		method = http.MethodGet
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
	default: // clients can invent others
		method = "OTHER"
	}
	return front.Part("", method+" "+pattern)
}

// Func is the result of f, under a name: "user=42". The Key is missing if that is empty.
// f must be safe for concurrent use.
func Func(name string, f func(*http.Request) string) Key {
	return Key{func(r *http.Request, _ func() string) string {
		value := f(r)
		if value == "" {
			return ""
		}
		return front.Part(name, value)
	}}
}

// Or is k, or other where k is missing, or else the client's address.
func (k Key) Or(other Key) Key {
	return Key{func(r *http.Request, client func() string) string {
		if key := k.call(r, client); key != "" {
			return key
		}
		return other.call(r, client)
	}}
}

// Join counts each combination of keys by itself: "GET /items|192.0.2.1". The client's
// address replaces each missing key.
func Join(keys ...Key) Key {
	return Key{func(r *http.Request, client func() string) string {
		parts := make([]string, len(keys))
		for i, k := range keys {
			if parts[i] = k.call(r, client); parts[i] == "" {
				parts[i] = client()
			}
		}
		return front.Join(parts...)
	}}
}

func (k Key) call(r *http.Request, client func() string) string {
	if k.of == nil {
		return client()
	}
	return k.of(r, client)
}
