package grpclimit

import (
	"context"
	"strings"

	"google.golang.org/grpc/metadata"

	"github.com/batonhq/baton/ratelimit/internal/front"
)

// A Key says what a call is counted under. The zero Key is Client.
//
// Different values of callers never give the same key, and no key is too long for a
// store: unprintable characters are escaped, long values hashed.
type Key struct {
	of func(c call) string // "" if it is missing
}

type call struct {
	ctx    context.Context
	method string
	client func() string
}

// Client is the caller's address: "192.0.2.1", "2001:db8::/64", or "unknown" for a
// connection without an address, such as one by a Unix socket.
func Client() Key { return Key{func(c call) string { return c.client() }} }

// Metadata is the first value of a key of the call's metadata: "tenant=acme". The Key is
// missing if that is empty. Values of authorization and cookie are hashed. All spellings
// of one authorization count as one: the case of its scheme and the space around it do
// not matter.
func Metadata(name string) Key { return fromMetadata(name, front.Part) }

// SecretMetadata is Metadata for a secret value, such as an API key. The value is hashed,
// because the store and errors show keys.
func SecretMetadata(name string) Key { return fromMetadata(name, front.Secret) }

func fromMetadata(name string, part func(name, value string) string) Key {
	name = strings.ToLower(name)
	part = front.Careful(name, part)
	return Key{func(c call) string {
		values := metadata.ValueFromIncomingContext(c.ctx, name)
		if len(values) == 0 || values[0] == "" {
			return ""
		}
		return part(name, values[0])
	}}
}

// Method is the full name of the method: "/shop.Orders/Place". With
// grpc.UnknownServiceHandler callers can invent methods.
func Method() Key { return Key{func(c call) string { return front.Part("", c.method) }} }

// Func is the result of f, under a name: "user=42". The Key is missing if that is empty.
// f must be safe for concurrent use.
func Func(name string, f func(ctx context.Context, fullMethod string) string) Key {
	return Key{func(c call) string {
		value := f(c.ctx, c.method)
		if value == "" {
			return ""
		}
		return front.Part(name, value)
	}}
}

// Or is k, or other where k is missing, or else the caller's address.
func (k Key) Or(other Key) Key {
	return Key{func(c call) string {
		if key := k.call(c); key != "" {
			return key
		}
		return other.call(c)
	}}
}

// Join counts each combination of keys by itself: "/shop.Orders/Place|192.0.2.1". The
// caller's address replaces each missing key.
func Join(keys ...Key) Key {
	return Key{func(c call) string {
		parts := make([]string, len(keys))
		for i, k := range keys {
			if parts[i] = k.call(c); parts[i] == "" {
				parts[i] = c.client()
			}
		}
		return front.Join(parts...)
	}}
}

func (k Key) call(c call) string {
	if k.of == nil {
		return c.client()
	}
	return k.of(c)
}
