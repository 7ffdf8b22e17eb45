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

// onceKeys is once.LockPrefix, with which the locks of operations begin.
const onceKeys = "once/"

// askKeys is baton.AskPrefix. A lock of this prefix and a key is a request to release the
// lock of that key.
const askKeys = "@ask/"

// hash is the SHA-256 of an access token. Tokens are looked up by it, so that the time of
// the look-up tells nothing about the tokens in the table.
type hash [sha256.Size]byte

// A Table is the content of a file of roles. It does not change, and is safe for
// concurrent use.
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

// Count returns the numbers of access tokens, names of certificates, and users of the
// host.
func (t *Table) Count() (tokens, certificates, users int) {
	return len(t.tokens), len(t.certificates), len(t.users)
}

// An UnknownError says that the table has no such caller. It does not repeat an access
// token.
type UnknownError struct {
	What string // "access token", "certificate", "user 1001"
}

func (e *UnknownError) Error() string {
	return "the " + e.What + " is that of no caller: ask the administrator for a role"
}

// ByToken returns the caller of an access token, or an *UnknownError.
func (t *Table) ByToken(token string) (*Role, error) {
	if r := t.tokens[sha256.Sum256([]byte(token))]; r != nil {
		return r, nil
	}
	return nil, &UnknownError{"access token"}
}

// ByUID returns the caller of a user of the host, or an *UnknownError. uid is -1 if the
// system does not tell it.
func (t *Table) ByUID(uid int64) (*Role, error) {
	if r := t.users[uid]; r != nil {
		return r, nil
	}
	if uid < 0 {
		return nil, &UnknownError{"user, whom the system does not tell,"}
	}
	return nil, &UnknownError{fmt.Sprintf("user %d", uid)}
}

// ByCertificate returns the caller of a certificate, or an *UnknownError. It does not
// verify the certificate. A certificate with the names of several callers has no caller.
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

// names returns the names in a certificate, written as credentials.
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
	rules       []rule // sorted by prefix
	everything  bool
}

type rule struct {
	prefix string
	verbs  []string
}

// Everything returns a caller that may do everything.
func Everything(name string) *Role { return &Role{name: name, everything: true} }

// OfCertificate returns a caller that may do everything, with the first name in a verified
// certificate. The error is an *UnknownError.
func OfCertificate(c *x509.Certificate) (*Role, error) {
	all := names(c)
	if len(all) == 0 {
		return nil, &UnknownError{"certificate without a name"}
	}
	return Everything(all[0]), nil
}

// Name returns the caller's name in the file.
func (r *Role) Name() string { return r.name }

// May returns nil if the caller may do what verb says with a key, and else a *DeniedError.
// For List the key is a prefix: the caller must have List for all keys below it.
//
// The locks of operations, below once/, cannot be locked: such a lock would block the
// operation. For the verb Once the key is that of the operation, without once/.
//
// A lock below @ask/ is a request to release the lock that the rest of the key names. Lock
// for a request also needs Break for that lock, and List also needs List for that lock.
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

// MaySome reports whether the caller may have the verb for some key with that prefix. It
// ignores the exceptions below once/ and @ask/, so May can still deny each of these keys.
func (r *Role) MaySome(verb, prefix string) bool {
	return slices.Contains(verbs, verb) && (r.everything || r.longest(verb, prefix) || slices.ContainsFunc(r.rules, func(one rule) bool {
		return strings.HasPrefix(one.prefix, prefix) && slices.Contains(one.verbs, verb)
	}))
}

// may is May without the exception below @ask/.
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
	for _, one := range r.rules { // in order of their prefixes: the longest comes last
		if strings.HasPrefix(key, one.prefix) {
			has = slices.Contains(one.verbs, verb)
		}
	}
	return has
}

// A DeniedError says that a caller may not do something.
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

// A Change names the callers in which a table differs from the one before.
type Change struct {
	Added, Removed, Changed []string // sorted
}

// Empty reports whether the tables are equal.
func (c Change) Empty() bool { return len(c.Added)+len(c.Removed)+len(c.Changed) == 0 }

func (t *Table) since(before *Table) Change {
	c := Change{[]string{}, []string{}, []string{}} // the audit shows [], not null
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

// Credential returns the credential of an access token, as a file of roles has it.
func Credential(token string) string {
	sum := sha256.Sum256([]byte(token))
	return "sha256:" + hex.EncodeToString(sum[:])
}
