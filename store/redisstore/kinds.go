package redisstore

import (
	"context"
	"errors"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/store/redisstore/internal/wire"
)

// Downgrade implements driver.Downgrader.
func (s *Store) Downgrade(ctx context.Context, c driver.Claim, ttl time.Duration) (driver.Grant, error) {
	if err := errors.Join(check.Claim(c), check.TTL(c.Key, ttl, traits)); err != nil {
		return driver.Grant{}, err
	}
	return s.change(ctx, downgradeScript, c, ttl)
}

// Move implements driver.Mover.
func (s *Store) Move(ctx context.Context, c driver.Claim, id, owner string, ttl time.Duration) (driver.Grant, error) {
	if err := check.Move(c, id, owner, ttl, traits); err != nil {
		return driver.Grant{}, err
	}
	g, err := s.change(ctx, moveScript, c, ttl, id, owner)
	if n, bad := s.names.of(c.Key); err == nil && bad == nil {
		s.ended(n, c, nil) // the old ID
	}
	return g, err
}

// Rename implements driver.Renamer.
func (s *Store) Rename(ctx context.Context, c driver.Claim, owner string) error {
	if err := check.Rename(c, owner); err != nil {
		return err
	}
	n, err := s.names.of(c.Key)
	if err != nil {
		return err
	}
	answer, err := s.run(ctx, renameScript, n.full(), []string{c.ID, owner})
	if err == nil && number(answer) == 0 {
		err = driver.ErrLost
	}
	return err
}

// change runs a script that changes the lock of c and answers its token.
func (s *Store) change(ctx context.Context, script *wire.Script, c driver.Claim, ttl time.Duration, args ...string) (driver.Grant, error) {
	n, err := s.names.of(c.Key)
	if err != nil {
		return driver.Grant{}, err
	}
	ttl = ttl.Truncate(time.Millisecond)
	call := wire.Call{Script: script, Keys: n.full(), Args: append([]string{c.ID, millis(ttl), tokenArg(c)}, args...), Acks: s.replicas.ask(ttl)}
	answer, err := s.runCall(ctx, call)
	if err != nil {
		return driver.Grant{}, err
	}
	token := number(answer)
	if token <= 0 {
		return driver.Grant{}, driver.ErrLost
	}
	if err := s.replicas.missing(call.Acks, c.Key); err != nil {
		return driver.Grant{}, err
	}
	return grant(token, ttl), nil
}

// want is the kind of a claim in the form of the scripts.
func want(c driver.Claim) string {
	switch {
	case c.Exclusive():
		return "x"
	case c.Shared():
		return "r" + strconv.FormatInt(c.Weight, 10)
	}
	return "p" + strconv.FormatInt(c.Weight, 10) + "/" + strconv.FormatInt(c.Capacity, 10)
}

func parseWant(s string) (weight, capacity int64) {
	switch {
	case s == "x":
		return driver.Whole, driver.Whole
	case strings.HasPrefix(s, "r"):
		return number(s[1:]), driver.Whole
	case strings.HasPrefix(s, "p"):
		w, c, _ := strings.Cut(s[1:], "/")
		return number(w), number(c)
	}
	return 0, 0
}
