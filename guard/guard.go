package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/batonhq/baton/driver/check"
)

// A Pass is a writer's proof for a guard. Only passes of leases on one key can be
// compared: a resource is always guarded by the same lock.
type Pass struct {
	// Token is the fencing token of the lease: positive.
	Token int64

	// Holder distinguishes two writers with equal tokens. Tokens of Baton's leases are
	// never equal, except after losses that GUARANTEES.md names: an equal token is the
	// same grant, and Of leaves Holder empty. If it is set it must name the grant, and go
	// with the grant to another process (Attach). At most 128 bytes of UTF-8 without
	// control characters.
	Holder string
}

// Lease is the source of a Pass. *baton.Lease is one.
type Lease interface {
	Token() int64
}

// Of is the pass of a lease: its token, and no Holder.
func Of(l Lease) Pass { return Pass{Token: l.Token()} }

// ErrStale is what errors.Is finds in every *StaleError.
var ErrStale = errors.New("stale fencing token")

// StaleError refuses a write because the resource has seen a higher token, or the same
// one from another holder. Nothing was changed. The writer's lease has ended; another try
// with it is useless.
type StaleError struct {
	Resource    string
	Token, Last int64
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

func (e *StaleError) Error() string {
	if e.Token == e.Last {
		return fmt.Sprintf("guard: %q has seen token %d from another holder: acquire the lock again", e.Resource, e.Token)
	}
	return fmt.Sprintf("guard: %q has seen token %d, which is higher than %d: the lease has ended, acquire the lock again", e.Resource, e.Last, e.Token)
}

// PassError refuses a pass, or a resource's name, before any effect.
type PassError struct {
	Reason string
}

func (e *PassError) Error() string { return "guard: bad pass: " + e.Reason }

// maxHolder is the greatest length of a lock's owner.
const maxHolder = 128

func (p Pass) check() error {
	switch {
	case p.Token <= 0:
		return &PassError{fmt.Sprintf("token %d is not positive", p.Token)}
	case len(p.Holder) > maxHolder:
		return &PassError{fmt.Sprintf("the holder has %d bytes, at most %d are allowed", len(p.Holder), maxHolder)}
	case !utf8.ValidString(p.Holder):
		return &PassError{"the holder is not UTF-8"}
	}
	for _, r := range p.Holder {
		if unicode.IsControl(r) {
			return &PassError{fmt.Sprintf("the holder has a control character (%U)", r)}
		}
	}
	return nil
}

func legal(resource string, p Pass) error {
	if err := check.Key(resource); err != nil {
		return fmt.Errorf("guard: name of a resource: %w", err)
	}
	return p.check()
}

// admits is the rule: a higher token, or the same from the same holder. The zero Pass,
// which is illegal, is below all others.
func (p Pass) admits(next Pass) bool {
	return next.Token > p.Token || next == p
}

// Marks remembers the highest pass of each resource. Memory, SQL.Marks and Redis are
// Marks. All methods are safe for concurrent use.
type Marks interface {
	// Raise admits p and remembers it, or refuses it with a *StaleError, in one atomic
	// step: of two concurrent calls the lower one comes first or is refused. It is one
	// attempt. After another error the store may have remembered p, which is harmless:
	// raise it again.
	//
	// Resources are 1 to 512 bytes of UTF-8 without control characters, compared byte by
	// byte; another name is a *driver.KeyError, an illegal Pass a *PassError.
	Raise(ctx context.Context, resource string, p Pass) error
}

// Memory is Marks in the memory of this process. The zero Memory is ready to use. It
// keeps one entry for each resource for ever.
type Memory struct {
	mu    sync.Mutex
	marks map[string]Pass
}

// Raise implements Marks. Its only errors are refusals.
func (m *Memory) Raise(ctx context.Context, resource string, p Pass) error {
	if err := legal(resource, p); err != nil {
		return err
	}
	last, ok := m.raise(resource, p)
	if !ok {
		return refuse(ctx, "memory", resource, p, last.Token)
	}
	return nil
}

func (m *Memory) raise(resource string, p Pass) (last Pass, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if last = m.marks[resource]; !last.admits(p) {
		return last, false
	}
	if m.marks == nil {
		m.marks = make(map[string]Pass)
	}
	m.marks[resource] = p
	return last, true
}

type passKey struct{}

// With returns a context with p, for From, Transport and handlers.
func With(ctx context.Context, p Pass) context.Context {
	return context.WithValue(ctx, passKey{}, p)
}

// From is the pass of a context: that of With, or that of a request which HTTP admitted.
func From(ctx context.Context) (p Pass, ok bool) {
	p, ok = ctx.Value(passKey{}).(Pass)
	return p, ok
}
