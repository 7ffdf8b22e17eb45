package main

import (
	"cmp"
	"strconv"
	"strings"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// lockView is a lock in JSON. Tokens are strings, because JavaScript cannot count that
// far. Durations are seconds. What the store does not know is absent.
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

// asksFor is the lock that a request is about, or "" if key is not a request's.
func asksFor(key string) string {
	if of, ok := strings.CutPrefix(key, baton.AskPrefix); ok {
		return of
	}
	return ""
}

// mode names the kind of a holder's or waiter's claim.
func mode(of interface{ Mode() string }) string { return cmp.Or(of.Mode(), "unknown") }

func token(h driver.HolderInfo) string {
	if h.Token == 0 {
		return ""
	}
	return strconv.FormatInt(h.Token, 10)
}

// ownerLabel is the name of a holder or waiter on a terminal.
func ownerLabel(name string, foreign bool) string {
	switch {
	case name != "":
		return safe(name)
	case foreign:
		return "(not Baton)"
	}
	return "(unknown)"
}
