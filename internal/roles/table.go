package roles

import (
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/batonhq/baton/driver"
)

// onceKeys is what the locks of operations begin with, as in package once.
const onceKeys = "once/"

// askKeys is what the locks begin with that stand for requests to release a lock, as in
// package baton. The key of that lock follows.
const askKeys = "@ask/"

// hash is the SHA-256 of an access token. A token is looked up by its hash: how long that
// takes tells nothing about the tokens that there are.
type hash [sha256.Size]byte

// A Table is a file of roles that was read. It does not change, and is safe for concurrent
// use.
type Table struct {
	names        map[string]*Role
	tokens       map[hash]*Role
	certificates map[string]*Role // by cn:NAME and uri:URI
	users        map[int64]*Role
}

func newTable() *Table {
	return &Table{
		names: make(map[string]*Role), tokens: make(map[hash]*Role),
		certificates: make(map[string]*Role), users: make(map[int64]*Role),
	}
}

// Count tells how many access tokens, names of certificates and users of the host the table
// knows.
func (t *Table) Count() (tokens, certificates, users int) {
	return len(t.tokens), len(t.certificates), len(t.users)
}

// An UnknownError says that the table knows no such caller. It does not repeat an access
// token.
type UnknownError struct {
	What string // "access token", "certificate", "user 1001"
}

func (e *UnknownError) Error() string {
	return "the " + e.What + " is that of no caller: ask the administrator for a role"
}

// ByToken finds the caller of an access token, or returns an *UnknownError.
func (t *Table) ByToken(token string) (*Role, error) {
	if r := t.tokens[sha256.Sum256([]byte(token))]; r != nil {
		return r, nil
	}
	return nil, &UnknownError{"access token"}
}

// ByUID finds the caller that a user of the host is, or returns an *UnknownError.
func (t *Table) ByUID(uid int64) (*Role, error) {
	if r := t.users[uid]; r != nil {
		return r, nil
	}
	if uid < 0 {
		return nil, &UnknownError{"user, whom the system does not tell,"}
	}
	return nil, &UnknownError{fmt.Sprintf("user %d", uid)}
}

// ByCertificate finds the caller of a certificate, or returns an *UnknownError. The
// certificate is one that the caller of ByCertificate has verified. If its names are those
// of several callers it is that of none.
func (t *Table) ByCertificate(c *x509.Certificate) (*Role, error) {
	var found *Role
	for _, name := range names(c) {
		r := t.certificates[name]
		if r != nil && found != nil && r != found {
			return nil, &UnknownError{"certificate, which has the names of several callers,"}
		}
		if r != nil {
			found = r
		}
	}
	if found == nil {
		return nil, &UnknownError{"certificate"}
	}
	return found, nil
}

// names are those of a certificate, as credentials.
func names(c *x509.Certificate) []string {
	var all []string
	for _, uri := range c.URIs {
		all = append(all, "uri:"+uri.String())
	}
	if c.Subject.CommonName != "" {
		all = append(all, "cn:"+c.Subject.CommonName)
	}
	return all
}

// A Role is what one caller may do. It does not change, and is safe for concurrent use.
type Role struct {
	name        string
	credentials []string
	rules       []rule // sorted by prefix; nil and everything: all
	everything  bool
}

type rule struct {
	prefix string
	verbs  []string
}

// Everything is a caller that may do everything.
func Everything(name string) *Role { return &Role{name: name, everything: true} }

// OfCertificate is the caller of a certificate that was verified, and may do everything.
func OfCertificate(c *x509.Certificate) (*Role, error) {
	all := names(c)
	if len(all) == 0 {
		return nil, &UnknownError{"certificate without a name"}
	}
	return Everything(all[0]), nil
}

// Name is who the caller is.
func (r *Role) Name() string { return r.name }

// May returns nil if the caller may do what verb says with a key, else a *DeniedError. For
// the verb List the key is a prefix: the caller may list all that is below it.
//
// The locks of operations, below once/, cannot be locked: that would keep an operation from
// being run. The verb Once is about the key of the operation, without once/.
//
// A lock below @ask/ is a request to release the lock that the rest of the key names. To
// lock it a caller also needs Break for that lock, and to list it List for that lock.
func (r *Role) May(verb, key string) error {
	if !r.may(verb, key) {
		return &DeniedError{r.name, verb, key}
	}
	asked, request := strings.CutPrefix(key, askKeys)
	switch {
	case verb == Lock && request && !r.may(Break, asked),
		verb == List && request && !r.may(List, asked),
		verb == List && strings.HasPrefix(askKeys, key) && !r.may(List, ""): // requests of all locks are below
		return &DeniedError{r.name, verb, key}
	}
	return nil
}

// MaySome reports whether there may be a key with that prefix for which the caller has the
// verb. Of what is special below once/ and @ask/ it knows nothing: May decides.
func (r *Role) MaySome(verb, prefix string) bool {
	return slices.Contains(verbs, verb) && (r.everything || r.longest(verb, prefix) || slices.ContainsFunc(r.rules, func(one rule) bool {
		return strings.HasPrefix(one.prefix, prefix) && slices.Contains(one.verbs, verb)
	}))
}

// may is May, without what is special below @ask/.
func (r *Role) may(verb, key string) bool {
	if !slices.Contains(verbs, verb) || verb == Lock && strings.HasPrefix(key, onceKeys) {
		return false
	}
	if r.everything {
		return true
	}
	return r.longest(verb, key) && (verb != List || !slices.ContainsFunc(r.rules, func(one rule) bool {
		return strings.HasPrefix(one.prefix, key) && !slices.Contains(one.verbs, List)
	}))
}

// longest reports whether the rule with the longest prefix of key has the verb.
func (r *Role) longest(verb, key string) (has bool) {
	for _, one := range r.rules { // that rule comes last
		if strings.HasPrefix(key, one.prefix) {
			has = slices.Contains(one.verbs, verb)
		}
	}
	return has
}

// A DeniedError says that a caller may not do what it asks for.
type DeniedError struct {
	Caller, Verb, Key string
}

func (e *DeniedError) Error() string {
	who := driver.Printable(e.Caller)
	if who == "" {
		who = "this caller"
	}
	if e.Verb == Lock && strings.HasPrefix(e.Key, onceKeys) {
		return fmt.Sprintf("%s may not lock %q: below %s are the locks of operations, ask for %s instead", who, e.Key, onceKeys, Once)
	}
	if asked, request := strings.CutPrefix(e.Key, askKeys); e.Verb == Lock && request {
		return fmt.Sprintf("%s may not ask the holders of %q to release it: ask the administrator for a role with %s for %q, and %s for that key", who, asked, Lock, e.Key, Break)
	}
	what := fmt.Sprintf("the key %q", e.Key)
	if e.Verb == List {
		what = fmt.Sprintf("all below %q", e.Key)
	}
	return fmt.Sprintf("%s may not %s %s: the file of roles gives it no such verb by the longest prefix of that key. Ask the administrator", who, driver.Printable(e.Verb), what)
}

// A Change says which callers a table has more, less and otherwise than the one before.
type Change struct {
	Added, Removed, Changed []string // sorted
}

// Empty reports whether nothing has changed.
func (c Change) Empty() bool { return len(c.Added)+len(c.Removed)+len(c.Changed) == 0 }

// since compares t with the table before.
func (t *Table) since(before *Table) Change {
	c := Change{[]string{}, []string{}, []string{}} // the audit has [] of what is none
	for _, name := range slices.Sorted(maps.Keys(t.names)) {
		switch old := before.names[name]; {
		case old == nil:
			c.Added = append(c.Added, name)
		case !t.names[name].same(old):
			c.Changed = append(c.Changed, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before.names)) {
		if t.names[name] == nil {
			c.Removed = append(c.Removed, name)
		}
	}
	return c
}

func (r *Role) same(old *Role) bool {
	return slices.Equal(r.credentials, old.credentials) && slices.EqualFunc(r.rules, old.rules, func(a, b rule) bool {
		return a.prefix == b.prefix && slices.Equal(a.verbs, b.verbs)
	})
}

// Credential is what stands for an access token in a file of roles.
func Credential(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha256:" + hex.EncodeToString(sum[:])
}
