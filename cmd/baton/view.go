package main

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// lockView is a lock in JSON. Tokens are strings, because they may exceed the integers
// that JavaScript can count; durations are seconds; what the store does not know is
// left out.
type lockView struct {
	Key     string       `json:"key"`
	AsksFor string       `json:"asks_for,omitempty"`
	Mode    string       `json:"mode,omitempty"`
	Holders []holderView `json:"holders"`
	Waiters []waiterView `json:"waiters"`
}

type holderView struct {
	Owner     string   `json:"owner"`
	Mode      string   `json:"mode"`
	Token     string   `json:"token,omitempty"`
	Age       *float64 `json:"age,omitempty"`
	Remaining float64  `json:"remaining"`
	Foreign   bool     `json:"foreign,omitempty"`
	Grant     string   `json:"grant,omitempty"`
}

type waiterView struct {
	Owner string   `json:"owner"`
	Mode  string   `json:"mode"`
	Age   *float64 `json:"age,omitempty"`
}

func view(info driver.KeyInfo) lockView {
	v := lockView{Key: info.Key, AsksFor: asksFor(info.Key), Holders: []holderView{}, Waiters: []waiterView{}}
	for _, h := range info.Holders {
		one := holderView{Owner: h.Owner, Mode: mode(h), Token: token(h), Remaining: seconds(h.Remaining), Foreign: h.Foreign, Grant: h.Grant}
		if h.Age >= 0 {
			age := seconds(h.Age)
			one.Age = &age
		}
		v.Holders = append(v.Holders, one)
	}
	for _, w := range info.Waiters {
		one := waiterView{Owner: w.Owner, Mode: mode(w)}
		if w.Age >= 0 {
			age := seconds(w.Age)
			one.Age = &age
		}
		v.Waiters = append(v.Waiters, one)
	}
	return v
}

// asksFor is the lock that a request named key asks for, or "" if key is none of a
// request.
func asksFor(key string) string {
	if of, ok := strings.CutPrefix(key, baton.AskPrefix); ok {
		return of
	}
	return ""
}

// mode names the kind of the claim of a holder or a waiter.
func mode(of interface{ Mode() string }) string { return cmp.Or(of.Mode(), "unknown") }

func token(h driver.HolderInfo) string {
	if h.Token == 0 {
		return ""
	}
	return strconv.FormatInt(h.Token, 10)
}

// ownerLabel is a holder's or waiter's name for a terminal.
func ownerLabel(name string, foreign bool) string {
	switch {
	case name != "":
		return safe(name)
	case foreign:
		return "(not Baton)"
	}
	return "(unknown)"
}
