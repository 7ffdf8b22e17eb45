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

// maxPause is the longest pause between two tries while the store is out of reach.
const maxPause = 5 * time.Second

// A Candidate takes part in an election. Its fields must not change while it runs;
// methods are safe for concurrent use.
type Candidate struct {
	// Locks has the store. Its TTL and Margin determine how long a leader may be silent.
	// With MaxHold no leadership lasts longer than that.
	Locks *baton.Locker

	// Name is the name of the election: the key of a lock without other users.
	Name string

	// Value is the leader's text for observers until Leadership.Publish changes it. At
	// most 128 bytes of printable UTF-8. Defaults to the owner of Locks.
	Value string

	// Logger gets leaders that do not stop as errors, trouble with the store as warnings,
	// and each leadership at the debug level. Defaults to slog.Default(), because a
	// leader that does not stop must not be hidden.
	Logger *slog.Logger

	// Events are called when something happens. Defaults to none.
	Events *Events
}

// Run is Candidate.Run of a Candidate with only these two fields.
func Run(ctx context.Context, locks *baton.Locker, name string, lead func(context.Context, *Leadership) error) error {
	return (&Candidate{Locks: locks, Name: name}).Run(ctx, lead)
}

// Run takes part in the election and calls lead each time it is elected, with a context
// that ends with the leadership, before the store can elect another. Run gives the
// leadership up when lead has returned, not before. lead must return soon after the end
// of its context, and wait for all goroutines that it started.
//
// If the leadership was lost or resigned, Run takes part again, whatever lead returned:
// lead's error then is only about the loss, and is logged. Otherwise Run returns the
// result of lead. If ctx ended, Run returns its error, joined with another error of lead.
// It returns the error of Locker.Lock if another try cannot help, such as *KeyError,
// ErrNested, ErrUnsupported. While the store is out of reach it tries again.
//
// If lead panics, or calls runtime.Goexit, Run gives the leadership up and lets the panic
// continue. lead may be called again after it has done all its work, if the leadership
// was lost just then.
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
			// Observers distinguish leaderships by the store's token, so each needs one
			// of its own: the lease must not be handed over inside this process. serve
			// finds a loss.
			_, _ = lease.Pin()
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

// serve calls lead while the lease is valid. again says that the candidate takes part
// again.
func (c *Candidate) serve(ctx context.Context, lease *baton.Lease, lead func(context.Context, *Leadership) error) (again bool, err error) {
	work, resign := context.WithCancelCause(ctx)
	defer resign(nil)
	l := &Leadership{lease: lease, ctx: lease.Context(work), resign: resign}
	over := l.Err()
	if over != nil { // the process was paused, or told to end, meanwhile
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
// leadership ended before lead returned, or nil.
func (c *Candidate) lead(ctx context.Context, l *Leadership, lead func(context.Context, *Leadership) error) (over, err error) {
	w := c.watch(ctx, l)
	err = ErrNoReturn
	defer func() { // even if lead or Elected panics
		returned := time.Now()
		over = l.Err()
		close(w.done)
		c.giveUp(l) // first: a slow Late must not keep the leadership
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

// endOf is the error of an ended ctx. errors.Is finds the context's error and its cause
// in it.
func endOf(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}

// A Leadership is the time in which a candidate leads, from its election to its end. All
// methods are safe for concurrent use.
type Leadership struct {
	lease  *baton.Lease
	ctx    context.Context // the context of lead
	resign context.CancelCauseFunc
}

// Token is the fencing token: positive, and higher than that of every earlier leadership
// of the name. It never changes. Pass it to what the leader changes. It may exceed 2⁵³:
// in JSON and JavaScript it must be a string.
func (l *Leadership) Token() int64 { return l.lease.Token() }

// IsLeader reports whether the process is the leader at this instant: at no instant is it
// true for two candidates. It looks at the clock, so that a process that was paused gets
// the right answer from its first call. It does not ask the store, and so learns of a
// broken lock only at its next renewal. It is false from the call of Resign on, and from
// the end of Run's context, though others are elected only after lead has returned.
//
// The answer may be outdated when it is used: see Token.
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

// Deadline is when the leadership ends unless it is renewed before. The Locker renews it
// every third of the TTL. It is not in the future for a lost leadership.
func (l *Leadership) Deadline() time.Time { return l.lease.Deadline() }

// Resign ends the leadership's context with the cause ErrResigned. The next waiter is
// elected when lead has returned; this candidate then waits behind the others. A second
// call, or one after the end, does nothing. It does not block.
func (l *Leadership) Resign() { l.resign(ErrResigned) }

// Publish changes the value of this leadership for observers, its Term.Value. The token
// and the order of the waiters stay. The rules for value are those of Candidate.Value, ""
// included. When Publish has returned nil the store shows the value, and Observe yields
// it at its next look. The value ends with the leadership: the next one of this candidate
// begins with Candidate.Value.
//
// Publish asks the store until it answers, for as long as ctx lasts and Locker.Lock
// would. Errors: that of Err if the leadership has ended; a *driver.RequestError for a
// value that is too long or not printable, and ErrUnsupported if the store cannot
// (GUARANTEES.md), both without an effect. After ctx's error, ErrUnknown or
// ErrUnavailable the store may show either value, and a request under way may take effect
// later: publish again. After two concurrent calls the store may show either value. No
// call changes a later leadership.
func (l *Leadership) Publish(ctx context.Context, value string) error {
	err := l.Err()
	if err == nil {
		if err = l.lease.Rename(ctx, value); err == nil {
			return nil
		}
		if over := l.Err(); over != nil { // the lease's error does not say why the leadership ended
			err = over
		}
	}
	return fmt.Errorf("election %q: publish: %w", l.lease.Key(), err)
}

// Pin lets the SQL stores' InTx commit a transaction only during the leadership. See
// baton.Lease.Pin.
func (l *Leadership) Pin() (driver.Claim, error) { return l.lease.Pin() }
