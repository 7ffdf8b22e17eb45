package main

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/ratelimit/rules"
)

// The library speaks English. What a new user meets of it first has words in other
// languages all the same. An error is known by its type; a reason that has none, by the
// format that makes it, which is here. A reason that is not here stays English.
var libraryTexts = []string{
	// package open
	"it has no scheme: write sqlite:PATH, such as sqlite:locks.db, or redis://HOST:PORT",
	"its scheme is not known: write sqlite:PATH or redis://HOST:PORT",
	"unknown scheme %s: did you mean %s?",
	"unknown scheme %s: write %s",
	"unknown scheme %s: there are %s",
	"unknown parameter %s: did you mean %s?",
	"the path is missing: write sqlite:PATH",
	// package check
	"it is empty: a key names what is locked, such as item/42",
	// handles
	"not a lease handle: it does not begin with %s",
	"not a lease handle: it is damaged",
	// package door, with the names of the flags in it
	"other machines could reach this address: give --tls-cert and --tls-key, and --tokens, or --client-ca; or listen on loopback, such as 127.0.0.1:7420",
	"other machines could reach this address, and read the access tokens on the way: give --tls-cert and --tls-key; or listen on loopback, behind a proxy that speaks TLS",
	"other machines could reach this address, and do everything: give --tokens, or --client-ca; or listen on loopback",
	// package rules
	"%s has no field %s: did you mean %s?",
	"%s has no field %s: there are %s",
	"%s needs a unit, as in %s or %s",
	"a rule", "a limit", "a descriptor", "a file of rules",
}

// inLanguage is the text of an error in the language that is spoken.
func inLanguage(err error) string {
	text := strings.TrimPrefix(err.Error(), "baton: ")
	if spoken == nil {
		return text
	}
	replace := func(part error, words string) {
		text = strings.Replace(text, strings.TrimPrefix(part.Error(), "baton: "), words, 1)
	}
	if e, ok := errors.AsType[*open.URLError](err); ok {
		if strings.HasPrefix(e.Error(), "store URL: ") {
			replace(e, phrase("store URL: %s", libraryText(e.Err.Error())))
		} else {
			replace(e, phrase("store URL %s: %s", e.URL, libraryText(e.Err.Error())))
		}
	}
	if e, ok := errors.AsType[*baton.KeyError](err); ok {
		replace(e, phrase("bad key %q: %s", e.Key, libraryText(e.Reason)))
	}
	if e, ok := errors.AsType[*baton.LostError](err); ok {
		cause := causeWords(e.Cause)
		if e.Err != nil {
			cause = phrase("%s (last error: %s)", cause, e.Err)
		}
		replace(e, phrase("the lease on %q (token %d) has ended: %s", e.Key, e.Token, cause))
	}
	if e, ok := errors.AsType[driver.Refusal](err); ok {
		replace(e, findingWords(e.Error()))
	}
	if e, ok := errors.AsType[*fs.PathError](err); ok {
		switch {
		case errors.Is(e, fs.ErrNotExist):
			replace(e, phrase("there is no file %s", e.Path))
		case errors.Is(e, fs.ErrPermission):
			replace(e, phrase("no permission for the file %s", e.Path))
		}
	}
	return text
}

// causeWords is why a lease has ended.
func causeWords(c baton.Cause) string {
	switch c {
	case baton.Expired:
		return translated("it could not be renewed in time")
	case baton.Gone:
		return translated("the store does not know it any more (broken, deleted, or forgotten)")
	case baton.Overheld:
		return translated("it was held for the longest time allowed")
	}
	return c.String()
}

// rulesWords is a mistake in a file of rules in the language that is spoken.
func rulesWords(e *rules.Error) string {
	in := *e
	in.Reason = libraryText(e.Reason)
	return in.Error()
}

// inLanguageOfRules is the text of mistakes in rules, each in lines of its own.
func inLanguageOfRules(err error) string {
	text := err.Error()
	of := []*rules.Error{}
	if all, ok := errors.AsType[rules.Errors](err); ok {
		of = all
	} else if one, ok := errors.AsType[*rules.Error](err); ok {
		of = append(of, one)
	}
	for _, e := range of {
		text = strings.Replace(text, e.Error(), rulesWords(e), 1)
	}
	return text
}

// libraryText is a reason that the library gives, in the language that is spoken.
func libraryText(text string) string {
	if words, ok := inFormats(libraryTexts, text); ok {
		return words
	}
	return text
}
