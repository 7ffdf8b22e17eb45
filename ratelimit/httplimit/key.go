package httplimit

import (
	"net/http"
	"net/textproto"
	"strings"

	"github.com/batonhq/baton/ratelimit/internal/front"
)

// A Key tells what a request is counted under. The zero Key is Client.
//
// Whatever clients send, two values never give the same key, and no key is too
// long for a store: what is not printable is escaped, what is long is hashed.
type Key struct {
	of func(r *http.Request, client func() string) string // "" if it is missing
}

// Client is the client's address: "192.0.2.1", "2001:db8::/64", or "unknown" for a
// connection that has none, such as one by a Unix socket.
func Client() Key {
	return Key{func(_ *http.Request, client func() string) string { return client() }}
}

// Header is the first value of a header: "x-tenant=acme". It is missing if that is
// empty. Authorization, Proxy-Authorization and Cookie are kept secret. All spellings of one
// Authorization are one: the case of its scheme and the space around it do not count.
func Header(name string) Key { return header(name, front.Part) }

// SecretHeader is like Header for a value that is nobody's business, such as
// an API key. Keys are seen by everybody who may read the store, and stand in
// errors, so it is hashed.
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

// Route is the method and the pattern by which an http.ServeMux has found the
// handler: "GET /items/%7Bid%7D". HEAD is counted as GET. It is missing if there is
// no pattern, as in front of the ServeMux: wrap the handlers behind it, or use
// RouteIn.
func Route() Key {
	return Key{func(r *http.Request, _ func() string) string { return route(r.Method, r.Pattern) }}
}

// RouteIn is what Route will be when mux has found a handler. It is missing if
// none will be found.
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
	// A pattern with a method decides; "GET" finds HEAD, too.
	if strings.ContainsAny(pattern, " \t") {
		return front.Part("", pattern)
	}
	switch method {
	case http.MethodHead, "":
		method = http.MethodGet
	case http.MethodGet, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete,
		http.MethodConnect, http.MethodOptions, http.MethodTrace:
	default: // clients invent others
		method = "OTHER"
	}
	return front.Part("", method+" "+pattern)
}

// Func is what a function says, under a name: "user=42". It is missing if that is
// empty. The function is called by many requests at once.
func Func(name string, f func(*http.Request) string) Key {
	return Key{func(r *http.Request, _ func() string) string {
		value := f(r)
		if value == "" {
			return ""
		}
		return front.Part(name, value)
	}}
}

// Or is the key, or another where it is missing. A key that is missing all the
// same is the client's address.
func (k Key) Or(other Key) Key {
	return Key{func(r *http.Request, client func() string) string {
		if key := k.call(r, client); key != "" {
			return key
		}
		return other.call(r, client)
	}}
}

// Join counts each combination of keys by itself: "GET /items|192.0.2.1". Each that
// is missing is the client's address.
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
