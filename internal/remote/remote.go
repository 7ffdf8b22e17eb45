// Package remote finds the address of a client that may be behind proxies.
package remote

import (
	"fmt"
	"net/netip"
	"strings"
)

// Form is the header in which a proxy names the client.
type Form uint8

const (
	NotForwarded  Form = iota // no header is trusted
	XForwardedFor             // X-Forwarded-For
	Forwarded                 // Forwarded, RFC 7239
)

// Addresses finds the address of a caller.
type Addresses struct {
	V4, V6  int // how many bits of an address count
	Form    Form
	Trusted []netip.Prefix
	Socket  bool // peers of a Unix socket are trusted, too
}

// Check refuses invalid settings, and normalises prefixes.
func (a *Addresses) Check() error {
	if a.V4 < 1 || a.V4 > 32 || a.V6 < 1 || a.V6 > 128 {
		return fmt.Errorf("addresses cut to /%d and /%d: they must be 1 to 32 bits of IPv4 and 1 to 128 of IPv6", a.V4, a.V6)
	}
	if a.Form == NotForwarded {
		if a.Socket {
			return fmt.Errorf("peers of a socket are trusted, but it is not said which header they set")
		}
		return nil
	}
	if len(a.Trusted) == 0 && !a.Socket {
		return fmt.Errorf("no proxies are named that may be believed")
	}
	trusted := make([]netip.Prefix, len(a.Trusted))
	for i, p := range a.Trusted {
		if p.IsValid() && p.Addr().Is4In6() && p.Bits() >= 96 {
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		switch {
		case !p.IsValid():
			return fmt.Errorf("a proxy's prefix is not valid")
		case p.Bits() == 0:
			return fmt.Errorf("%v believes everybody: name the prefixes of your proxies", p)
		}
		trusted[i] = p.Masked()
	}
	a.Trusted = trusted
	return nil
}

func (a *Addresses) trusts(addr netip.Addr) bool {
	for _, p := range a.Trusted {
		if p.Contains(addr) {
			return true
		}
	}
	return false
}

// Believes reports whether a peer is a trusted proxy. A peer of a Unix socket has the
// zero Addr, and socket is true.
func (a *Addresses) Believes(peer netip.Addr, socket bool) bool {
	return a.Form != NotForwarded && (a.trusts(peer.Unmap().WithZone("")) || a.Socket && socket && !peer.IsValid())
}

// maxHops is the greatest number of proxies in a chain.
const maxHops = 64

// Of is the caller's address: the peer, or if that is a trusted proxy, the address that
// it names. The lines are those of the header, in order. Each proxy appends the address
// of its peer, so Of reads from the end, and only as far as trusted proxies wrote: a
// client may have invented the rest. If a proxy's entry is no address, the caller is the
// peer. For a Unix socket see Believes.
func (a *Addresses) Of(peer netip.Addr, socket bool, lines []string) netip.Addr {
	peer = peer.Unmap().WithZone("")
	if !a.Believes(peer, socket) {
		return peer
	}
	caller := peer
	hops := 0
	for i := len(lines) - 1; i >= 0; i-- {
		rest, more := lines[i], true
		for more {
			var last string
			rest, last, more = a.cut(rest)
			hop, ok := a.hop(last)
			if hops++; !ok || hops > maxHops {
				return peer
			}
			caller = hop
			if !a.trusts(hop) {
				return caller
			}
		}
	}
	return caller
}

// cut separates the last element of a list.
func (a *Addresses) cut(list string) (rest, last string, more bool) {
	i := strings.LastIndexByte(list, ',')
	if a.Form == Forwarded {
		i = lastOutside(list, ',')
	}
	if i < 0 {
		return "", list, false
	}
	return list[:i], list[i+1:], true
}

func (a *Addresses) hop(element string) (netip.Addr, bool) {
	element = strings.Trim(element, " \t")
	if a.Form == Forwarded {
		var ok bool
		if element, ok = forwardedFor(element); !ok {
			return netip.Addr{}, false
		}
	}
	return Node(element)
}

// lastOutside is the index of the last c outside quoted strings, read from the end. So a
// quote that a client left open does not swallow what a proxy has appended.
func lastOutside(s string, c byte) int {
	quoted := false
	for i := len(s) - 1; i >= 0; i-- {
		switch {
		case s[i] == '"' && quoted && escaped(s, i):
		case s[i] == '"':
			quoted = !quoted
		case s[i] == c && !quoted:
			return i
		}
	}
	return -1
}

// escaped reports whether an odd number of backslashes precedes i.
func escaped(s string, i int) bool {
	n := 0
	for i--; i >= 0 && s[i] == '\\'; i-- {
		n++
	}
	return n%2 == 1
}

// forwardedFor is the value of the only "for" of an element of Forwarded.
func forwardedFor(element string) (value string, ok bool) {
	for more := true; more; {
		pair := element
		if i := lastOutside(element, ';'); i >= 0 {
			element, pair = element[:i], element[i+1:]
		} else {
			more = false
		}
		name, v, is := strings.Cut(strings.Trim(pair, " \t"), "=")
		switch {
		case !is:
			return "", false
		case !strings.EqualFold(name, "for"):
			continue
		case ok:
			return "", false // a second "for"
		}
		if v, is = unquote(v); !is {
			return "", false
		}
		value, ok = v, true
	}
	return value, ok
}

// unquote reads a token or a quoted string.
func unquote(s string) (string, bool) {
	if !strings.HasPrefix(s, `"`) {
		return s, !strings.ContainsAny(s, "\"\\ \t")
	}
	if len(s) < 2 || s[len(s)-1] != '"' || escaped(s, len(s)-1) {
		return "", false
	}
	s = s[1 : len(s)-1]
	if !strings.ContainsAny(s, `"\`) {
		return s, true
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return "", false
		case '\\':
			if i++; i == len(s) {
				return "", false
			}
		}
		b.WriteByte(s[i])
	}
	return b.String(), true
}

// Node parses an address: bare, in brackets, with or without a port. The result has no
// zone; an IPv4 address in IPv6 becomes an IPv4 address.
func Node(s string) (netip.Addr, bool) {
	var addr netip.Addr
	var err error
	if inner, ok := strings.CutPrefix(s, "["); ok && strings.HasSuffix(inner, "]") {
		addr, err = netip.ParseAddr(inner[:len(inner)-1])
		if err == nil && addr.Is4() {
			return netip.Addr{}, false
		}
	} else if addr, err = netip.ParseAddr(s); err != nil {
		var with netip.AddrPort
		with, err = netip.ParseAddrPort(s)
		addr = with.Addr()
	}
	return addr.Unmap().WithZone(""), err == nil
}

// nat64 is the prefix of IPv4 callers behind translators (RFC 6052).
var nat64 = netip.MustParsePrefix("64:ff9b::/96")

// Key is the key under which the caller's address is counted: the network in which one
// caller can choose addresses freely.
func (a *Addresses) Key(addr netip.Addr) string {
	if nat64.Contains(addr) {
		all := addr.As16()
		addr = netip.AddrFrom4([4]byte(all[12:]))
	}
	bits := a.V6
	switch {
	case !addr.IsValid():
		return "unknown"
	case addr.Is4():
		bits = a.V4
	}
	if bits == addr.BitLen() {
		return addr.String()
	}
	return netip.PrefixFrom(addr, bits).Masked().String()
}
