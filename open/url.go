package open

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
)

// An address is a parsed URL. Only its structure was checked; the opener of the scheme
// interprets the parts.
//
// net/url is not used because it takes a list of hosts for one host, refuses a list whose
// last host has no port, and quotes what it cannot parse, even passwords.
type address struct {
	scheme         string
	slashes        bool   // "//" follows the scheme
	credentials    bool   // user and password were given, perhaps empty
	user, password string // decoded
	hosts          []host
	path           string // decoded, without the slash after the hosts
	rawPath        string // with that slash
	params         []param
}

// A host is one element of the list. port is empty if none was given.
type host struct{ name, port string }

// address returns name and port for a dialer.
func (h host) address(defaultPort string) string {
	if h.port == "" {
		return net.JoinHostPort(h.name, defaultPort)
	}
	return net.JoinHostPort(h.name, h.port)
}

type param struct {
	name, value string // the value decoded
	raw         string // the value as written
}

// harmless are the parameters whose values may be shown. Others may be secrets, misspelt
// or meant for another program. Users, names of files with secrets and of environment
// variables are not listed: hiding them costs little.
var harmless = map[string]bool{
	"acl": true, "allow-eviction": true, "allow-replicas": true, "application_name": true, "ca": true, "cert": true,
	"connect-timeout": true, "connections": true, "db": true, "durable": true, "host": true, "insecure": true,
	"longest-ttl": true, "migrate": true, "pooler": true, "prefix": true, "replicas": true, "schema": true, "server-name": true,
	"session": true, "sslcert": true, "sslmode": true, "sslrootcert": true, "tls": true, "verify": true,
}

// secret reports whether the parameter's value must never be shown.
func (p param) secret() bool { return !harmless[p.name] }

// split separates the scheme, in lower case, from the rest of a URL. ok is false without
// a scheme.
func split(url string) (scheme, rest string, ok bool) {
	scheme, rest, ok = strings.Cut(url, ":")
	if !ok || scheme == "" {
		return "", url, false
	}
	for i, c := range []byte(scheme) {
		letter := c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
		if !letter && (i == 0 || !strings.ContainsRune("0123456789+-.", rune(c))) {
			return "", url, false
		}
	}
	return strings.ToLower(scheme), rest, true
}

// parse parses a URL. Its errors quote nothing that may be a secret: an unescaped
// character can make part of a password look like another part of the URL.
func parse(url string) (*address, error) {
	scheme, rest, ok := split(url)
	if !ok {
		return nil, errors.New("it has no scheme: write sqlite:PATH, such as sqlite:locks.db, or redis://HOST:PORT")
	}
	a := &address{scheme: scheme}
	rest, a.slashes = strings.CutPrefix(rest, "//")

	authority := ""
	if a.slashes {
		end := strings.IndexAny(rest, "/?")
		if end < 0 {
			end = len(rest)
		}
		authority, rest = rest[:end], rest[end:]
		if strings.Contains(rest, "@") {
			return nil, errors.New(`"@" stands after the hosts: write %40 for it there, and %2F and %3F for "/" and "?" in a user name or password`)
		}
	}
	if strings.Contains(rest, "#") {
		return nil, errors.New(`it contains "#": write %23 for it`)
	}
	path, query, _ := strings.Cut(rest, "?")

	if at := strings.LastIndexByte(authority, '@'); at >= 0 {
		a.credentials = true
		user, password, _ := strings.Cut(authority[:at], ":")
		var err1, err2 error
		a.user, err1 = unescape(user)
		a.password, err2 = unescape(password)
		if err := errors.Join(err1, err2); err != nil {
			return nil, errors.New(`the user name or password has a "%" that is not followed by two hexadecimal digits: write %25 for it`)
		}
		authority = authority[at+1:]
	}
	if authority != "" {
		for i, item := range strings.Split(authority, ",") {
			h, err := parseHost(item)
			if err != nil {
				return nil, fmt.Errorf("host %d: %w", i+1, err)
			}
			a.hosts = append(a.hosts, h)
		}
	}

	a.rawPath = path
	var err error
	if a.path, err = unescape(path); err != nil {
		return nil, fmt.Errorf("the path %w", err)
	}
	if a.slashes {
		a.path = strings.TrimPrefix(a.path, "/")
	}
	if strings.ContainsFunc(a.path, func(r rune) bool { return r < ' ' || r == 0x7f }) {
		return nil, errors.New("the path has a control character")
	}
	return a, a.parseParams(query)
}

func (a *address) parseParams(query string) error {
	if query == "" {
		return nil
	}
	for item := range strings.SplitSeq(query, "&") {
		name, raw, _ := strings.Cut(item, "=")
		if name == "" || strings.Trim(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") != "" {
			return errors.New(`a parameter has no name, or one that is not made of letters, digits, "-", "_" and "."`)
		}
		value, err := unescape(raw)
		if err != nil {
			return fmt.Errorf("the value of parameter %s %w", name, err)
		}
		for _, earlier := range a.params {
			if earlier.name == name {
				return fmt.Errorf("parameter %s is given twice", name)
			}
		}
		a.params = append(a.params, param{name, value, raw})
	}
	return nil
}

func parseHost(s string) (host, error) {
	var h host
	if rest, ok := strings.CutPrefix(s, "["); ok {
		name, after, closed := strings.Cut(rest, "]")
		ip, _, _ := strings.Cut(name, "%") // a zone may follow
		if !closed || net.ParseIP(ip) == nil || strings.Trim(name, "0123456789abcdefABCDEF:.%-_ghijklmnopqrstuvwxyz") != "" {
			return host{}, errors.New("what stands in brackets is not an IPv6 address")
		}
		h.name, s = name, after
		if s == "" {
			return h, nil
		}
		if s[0] != ':' {
			return host{}, errors.New("something other than a port follows the brackets")
		}
	} else {
		colon := strings.IndexByte(s, ':')
		if colon < 0 {
			colon = len(s)
		}
		h.name, s = s[:colon], s[colon:]
		if strings.Count(s, ":") > 1 {
			return host{}, errors.New("it has more than one colon: write an IPv6 address in brackets")
		}
		if h.name == "" {
			return host{}, errors.New("it has no name")
		}
		if strings.Trim(h.name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_") != "" {
			return host{}, errors.New("its name has a character that no host name has")
		}
		if s == "" {
			return h, nil
		}
	}
	n, err := strconv.ParseUint(s[1:], 10, 16)
	if err != nil || n == 0 {
		return host{}, errors.New("its port is not a number from 1 to 65535")
	}
	h.port = strconv.FormatUint(n, 10)
	return h, nil
}

// unescape decodes %XX. A plus sign stays.
func unescape(s string) (string, error) {
	if !strings.Contains(s, "%") {
		return s, nil
	}
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '%' {
			b.WriteByte(s[i])
			continue
		}
		if i+3 > len(s) {
			return "", errEscape
		}
		n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", errEscape
		}
		b.WriteByte(byte(n))
		i += 2
	}
	return b.String(), nil
}

var errEscape = errors.New(`has a "%" that is not followed by two hexadecimal digits: write %25 for it`)

// String returns the URL without its secrets.
func (a *address) String() string {
	if !a.slashes && !opaque(a.scheme) {
		return a.scheme + ":" + hidden // the slashes before a password may be missing
	}
	var b strings.Builder
	b.WriteString(a.scheme + ":")
	if a.slashes {
		b.WriteString("//")
	}
	if a.credentials {
		b.WriteString(hidden + "@")
	}
	for i, h := range a.hosts {
		if i > 0 {
			b.WriteByte(',')
		}
		if strings.Contains(h.name, ":") {
			b.WriteString("[" + h.name + "]")
		} else {
			b.WriteString(h.name)
		}
		if h.port != "" {
			b.WriteString(":" + h.port)
		}
	}
	b.WriteString(a.rawPath)
	for i, p := range a.params {
		b.WriteByte("?&"[min(i, 1)])
		b.WriteString(p.name)
		switch {
		case p.secret():
			b.WriteString("=" + hidden)
		case p.raw != "":
			b.WriteString("=" + p.raw)
		}
	}
	return b.String()
}

// opaque reports whether URLs of the scheme need no "//". Without it they have no part
// for secrets.
func opaque(scheme string) bool { return scheme == "memory" || scheme == "sqlite" }

// hidden replaces a secret.
const hidden = "***"

// Redact returns the URL of a store without user names, passwords and the values of
// parameters that may be secrets. If a URL cannot be parsed with certainty, at most the
// scheme is left.
func Redact(url string) string {
	if a, err := parse(url); err == nil && (a.slashes || known(a.scheme)) {
		return a.String()
	}
	if scheme, rest, ok := split(url); ok && (known(scheme) || strings.HasPrefix(rest, "//")) {
		return scheme + ":" + hidden
	}
	return hidden
}
