package election

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

// ErrResigned is the context.Cause of the context of a leader that resigned.
var ErrResigned = errors.New("election: resigned")

// maxPause is the longest time between two attempts to campaign while the store is
// out of reach.
const maxPause = 5 * time.Second

// A Candidate stands for election. Its fields must not change while it runs;
// methods are safe for concurrent use.
type Candidate struct {
	// Locks has the store, and with TTL and Margin how long a leader may be silent.
	// With MaxHold no leadership lasts longer than that.
	Locks *baton.Locker

	// Name is the name of the election: the key of a lock that nothing else should
	// use.
	Name string

	// Value is what observers learn of the leader until it publishes something else
	// (Leadership.Publish). At most 128 bytes of printable UTF-8. Defaults to the
	// owner that Locks was made with.
	Value string

	// Logger gets leaders that do not stop as errors, trouble with the store as
	// warnings, and each leadership at the debug level. Defaults to slog.Default(),
	// because a leader that does not stop must not be hidden.
	Logger *slog.Logger

	// Events are told what happens. Defaults to none.
	Events *Events
}

// Run stands for the election of name. It is short for Candidate.Run with only
// these two fields.
func Run(ctx context.Context, locks *baton.Locker, name string, lead func(context.Context, *Leadership) error) error {
	return (&Candidate{Locks: locks, Name: name}).Run(ctx, lead)
}

// Run stands for election and calls lead each time it is elected, with a context
// that ends with the leadership, before the store can elect another. Run gives the
// leadership up when lead has returned, not before; lead should return as soon as
// its context has ended, and wait for all goroutines that it started.
//
// If the leadership was lost or resigned, Run stands again, whatever lead returned:
// lead's error then only tells of the loss, and is logged. Otherwise Run returns
// what lead returned. If ctx ended, Run returns its error, joined with any other
// error of lead. It returns the error of Locker.Lock if another try cannot help,
// such as *KeyError, ErrNested, ErrUnsupported. While the store is out of reach it
// continues to try.
//
// If lead panics, or calls runtime.Goexit, Run gives the leadership up and lets the
// panic continue. Lead may be called again after it has done all its work, if the
// leadership was lost just then.
func (c *Candidate) Run(ctx context.Context, lead func(context.Context, *Leadership) error) error {
	for {
		lease, err := c.campaign(ctx)
		if err != nil {
			return err
		}
		if again, err := c.serve(ctx, lease, lead); !again {
			return err
		}
	}
}

// campaign waits until it is elected.
func (c *Candidate) campaign(ctx context.Context) (*baton.Lease, error) {
	for pause := maxPause / 16; ; pause = min(2*pause, maxPause) {
		lease, err := c.Locks.Lock(ctx, c.Name, baton.Owner(c.Value))
		if err == nil {
			// Observers distinguish leaderships by the store's token, so each needs
			// one of its own: the lease must not be handed over inside this
			// process.
			_, _ = lease.Pin() // serve finds out if it was lost meanwhile
			return lease, nil
		}
		if ctx.Err() != nil || !errors.Is(err, baton.ErrUnavailable) && !errors.Is(err, baton.ErrUnknown) {
			return nil, err
		}
		c.logger().Warn("candidate cannot reach the store, will try again", "election", c.Name, "error", err)
		if f := c.events().Failed; f != nil {
			e := c.event(nil)
			e.Err = err
			f(ctx, e)
		}
		select {
		case <-time.After(pause/2 + rand.N(pause)):
		case <-ctx.Done():
		}
	}
}

// serve calls lead while the lease stands. again says that the candidate stands
// again.
func (c *Candidate) serve(ctx context.Context, lease *baton.Lease, lead func(context.Context, *Leadership) error) (again bool, err error) {
	work, resign := context.WithCancelCause(ctx)
	defer resign(nil)
	l := &Leadership{lease: lease, ctx: lease.Context(work), resign: resign}
	over := l.Err()
	if over != nil { // the process was stopped, or told to end, meanwhile
		c.giveUp(l)
	} else {
		over, err = c.lead(ctx, l, lead)
	}

	switch {
	case ctx.Err() != nil:
		ended := fmt.Errorf("election %q: %w", c.Name, endOf(ctx))
		if err != nil && !errors.Is(err, ctx.Err()) && !errors.Is(err, context.Cause(ctx)) {
			ended = errors.Join(ended, err)
		}
		return false, ended
	case over == nil:
		return false, err
	case err != nil && !errors.Is(err, context.Canceled) && !errors.Is(err, over):
		c.logger().Warn("leader ended with an error after the leadership was over", c.attr(l), "cause", over, "error", err)
	}
	return true, nil
}

// lead calls lead and gives the leadership up even if lead panics. over is why the
// leadership had ended when lead returned, nil if it had not.
func (c *Candidate) lead(ctx context.Context, l *Leadership, lead func(context.Context, *Leadership) error) (over, err error) {
	w := c.watch(ctx, l)
	err = ErrNoReturn
	defer func() { // also when lead, or Elected, panics
		returned := time.Now()
		over = l.Err()
		close(w.done)
		c.giveUp(l) // first: a Late that takes long must not keep the leadership
		<-w.stopped
		c.logger().Debug("leadership ended", c.attr(l), "cause", over, "error", err)
		if f := c.events().Ended; f != nil {
			f(context.WithoutCancel(ctx), w.event(returned, over, err))
		}
	}()
	c.logger().Debug("elected", c.attr(l))
	if f := c.events().Elected; f != nil {
		f(l.ctx, c.event(l))
		if l.Err() != nil { // meanwhile
			return nil, nil
		}
	}
	return nil, lead(l.ctx, l)
}

func (c *Candidate) giveUp(l *Leadership) {
	err := l.lease.Unlock()
	if err != nil && !errors.Is(err, baton.ErrLost) { // the Locker logs losses
		c.logger().Warn("leadership could not be given up, it will expire", c.attr(l), "error", err)
	}
}

func (c *Candidate) logger() *slog.Logger {
	if c.Logger != nil {
		return c.Logger
	}
	return slog.Default()
}

func (c *Candidate) events() *Events {
	if c.Events != nil {
		return c.Events
	}
	return &Events{}
}

func (c *Candidate) attr(l *Leadership) slog.Attr {
	return slog.Group("election", "name", c.Name, "token", l.Token())
}

// endOf says why ctx has ended: errors.Is finds its error and its cause.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// A Leadership is the time for which a candidate leads, from its election to its
// end. All methods are safe for concurrent use.
type Leadership struct {
	lease  *baton.Lease
	ctx    context.Context // the context of lead
	resign context.CancelCauseFunc
}

// Token is the fencing token: positive, and higher than that of every earlier
// leadership of the name. It never changes. Pass it to what the leader changes.
// It may exceed 2⁵³: in JSON and JavaScript it must be a string.
func (l *Leadership) Token() int64 { return l.lease.Token() }

// IsLeader reports whether the process may believe in the leadership at this
// instant: it is true for no other candidate. It looks at the clock, not only at
// what was noticed before, so that a process that was stopped for long gets the
// right answer from its first call. It does not ask the store, and so learns of a
// lock that an operator broke only at its next renewal. It is false from the call
// of Resign on, and from the end of Run's context, though others are elected only
// after lead has returned.
//
// It does not promise that the answer is still true when it is used: see Token.
func (l *Leadership) IsLeader() bool { return l.Err() == nil }

// Err is nil while IsLeader is true, and then why the leadership ended: a
// *baton.LostError, ErrResigned, the cause of the end of Run's context, or
// context.Canceled if lead has returned.
func (l *Leadership) Err() error {
	if l.ctx.Err() == nil {
		return nil
	}
	return context.Cause(l.ctx)
}

// Deadline is when the leadership ends unless it is renewed before. The Locker
// renews it every third of the TTL. For a leadership that was lost it is not later
// than now.
func (l *Leadership) Deadline() time.Time { return l.lease.Deadline() }

// Resign ends the leadership's context with the cause ErrResigned. The next waiter
// is elected when lead has returned; this candidate stands again, behind those that
// wait. A second call, or one after the end, does nothing. It does not block.
func (l *Leadership) Resign() { l.resign(ErrResigned) }

// Publish changes what observers learn of this leadership, its Term.Value, and
// nothing else: neither the token nor the order of those who wait. The rules for value
// are those of Candidate.Value, "" included. When Publish has returned nil the store
// shows the value, and Observe yields it at its next look. It is forgotten with the
// leadership: the next one of this candidate begins with Candidate.Value.
//
// Publish asks the store until it answers, for as long as ctx lasts and Locker.Lock
// would. Errors: why the leadership has ended, as Err says it, also if it ended
// meanwhile; a *driver.RequestError for a value that is too long or not printable, and
// ErrUnsupported if the store cannot (GUARANTEES.md), both with no effect. After ctx's
// error, and one that is ErrUnknown or ErrUnavailable, the store may show either value,
// and a request that is still under way may take effect later: publish again. Of two
// calls at the same time either may win. No call changes what is shown of a later
// leadership.
func (l *Leadership) Publish(ctx context.Context, value string) error {
	err := l.Err()
	if err == nil {
		if err = l.lease.Rename(ctx, value); err == nil {
			return nil
		}
		if over := l.Err(); over != nil { // why the lease ended does not say why the leadership did
			err = over
		}
	}
	return fmt.Errorf("election %q: publish: %w", l.lease.Key(), err)
}

// Pin lets the SQL stores' InTx commit a transaction only while the leadership
// stands. See baton.Lease.Pin.
func (l *Leadership) Pin() (driver.Claim, error) { return l.lease.Pin() }
