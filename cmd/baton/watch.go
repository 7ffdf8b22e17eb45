package main

import (
	"context"
	"fmt"
	"maps"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

func (a *app) watchCommand() *cobra.Command {
	var every time.Duration
	var leader bool
	cmd := &cobra.Command{
		Use:   "watch [flags] [PREFIX]",
		Short: "Watch locks, or the leader of an election, change",
		Long: `Shows the locks whose names begin with the prefix, or all, and keeps looking: on a
terminal as a table, elsewhere as one line for each change. What happens between two
looks is not seen. Ctrl-C ends it, with exit code 0.

With --leader the argument is the NAME of an election: each change of the leader or of its
value is a line, the present one first. What happens within half a second is merged into
one change.

With -o json each change is one object on one line: time, key, change, and lock as
"baton show" prints it. A change is "held" (from free), "passed" (to other holders),
"queue" (others wait) or "free". The first look reports what it finds as changes. With
--leader an object has: time, name, led, and if true, value, token (a string), and age and
remaining in seconds.

` + exitTable,
		Example: `  baton watch
  baton watch -o json order: | jq -r 'select(.change == "passed") | .key'
  baton watch --leader api`,
		ValidArgsFunction: a.completeKey,
	}
	cmd.Flags().DurationVar(&every, "every", time.Second, "time between two looks, at least 50ms")
	cmd.Flags().BoolVar(&leader, "leader", false, "watch who leads the election NAME, the argument")
	cmd.MarkFlagsMutuallyExclusive("leader", "every")
	a.queryFlags(cmd)
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if leader {
			return oneArg("NAME")(cmd, args)
		}
		return noMoreThanOne("PREFIX")(cmd, args)
	}
	cmd.RunE = does(func(ctx context.Context, args []string) error {
		asJSON, err := a.json()
		if err != nil {
			return err
		}
		if every < 50*time.Millisecond {
			return usage("--every %v: it is at least 50ms", every)
		}
		if leader {
			return a.watchLeader(ctx, args[0], asJSON)
		}
		return a.lookOn(ctx, func(ctx context.Context, locks *baton.Locker) error {
			w := &watcher{app: a, json: asJSON, last: map[string]driver.KeyInfo{}}
			if !asJSON && term.IsTerminal(int(a.stdout.Fd())) {
				w.screen = true
				fmt.Fprint(a.stdout, enterScreen)
				defer fmt.Fprint(a.stdout, leaveScreen)
			}
			return w.run(ctx, locks, args, every)
		})
	})
	return cmd
}

func (a *app) lookOn(ctx context.Context, look func(ctx context.Context, locks *baton.Locker) error) error {
	ctx, stop := signal.NotifyContext(ctx, syscall.SIGINT)
	defer stop()
	locks, store, err := a.open(ctx, baton.Config{}, outlives)
	if err != nil {
		return err
	}
	defer shut(store)
	return look(ctx, locks)
}

// The table is drawn on the terminal's other screen: afterwards the user's screen is as
// before.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearBelow  = "\x1b[J"
)

type watcher struct {
	*app
	json   bool
	screen bool
	last   map[string]driver.KeyInfo
	failed bool // the last inspection failed
}

func (w *watcher) run(ctx context.Context, locks *baton.Locker, args []string, every time.Duration) error {
	tick := time.NewTicker(every)
	defer tick.Stop()
	for first := true; ; first = false {
		all, err := collect(ctx, locks, args)
		switch {
		case ctx.Err() != nil:
			return nil
		case err != nil && first:
			return err
		case err != nil:
			// A fail-over ends by itself, and a user who watches wants to see that as
			// well.
			if !w.failed {
				w.complain("%s; still watching", explain(err))
			}
		default:
			if w.failed {
				w.say("the store answers again")
			}
			if err := w.show(all, args); err != nil {
				return err
			}
		}
		w.failed = err != nil
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (w *watcher) show(all []driver.KeyInfo, args []string) error {
	if w.screen {
		return w.draw(all, args)
	}
	now := time.Now()
	gone := maps.Clone(w.last)
	for _, info := range all {
		delete(gone, info.Key)
		if c := change(w.last[info.Key], info); c != "" {
			if err := w.line(now, c, info); err != nil {
				return err
			}
		}
		w.last[info.Key] = info
	}
	for _, key := range slices.Sorted(maps.Keys(gone)) {
		delete(w.last, key)
		if err := w.line(now, "free", driver.KeyInfo{Key: key}); err != nil {
			return err
		}
	}
	return nil
}

// change names what happened to a lock between two inspections, or "".
func change(before, now driver.KeyInfo) string {
	sameHolder := func(x, y driver.HolderInfo) bool {
		return x.SameGrant(y) && x.Owner == y.Owner && x.Weight == y.Weight && x.Capacity == y.Capacity
	}
	sameWaiter := func(x, y driver.WaiterInfo) bool {
		return x.Owner == y.Owner && x.Weight == y.Weight && x.Capacity == y.Capacity
	}
	switch {
	case len(before.Holders) == 0 && len(now.Holders) > 0:
		return "held"
	case len(now.Holders) == 0 && len(before.Holders) > 0 && len(now.Waiters) == 0:
		return "free"
	case !slices.EqualFunc(before.Holders, now.Holders, sameHolder):
		return "passed"
	case !slices.EqualFunc(before.Waiters, now.Waiters, sameWaiter):
		return "queue"
	}
	return ""
}

func (w *watcher) line(at time.Time, change string, info driver.KeyInfo) error {
	if w.json {
		return printJSON(w.stdout, struct {
			Time   time.Time `json:"time"`
			Key    string    `json:"key"`
			Change string    `json:"change"`
			Lock   lockView  `json:"lock"`
		}{at.Round(time.Millisecond).UTC(), info.Key, change, view(info)}, false)
	}
	text := fmt.Sprintf("%s %-6s %s", at.Format("15:04:05.000"), change, safe(info.Key))
	if len(info.Holders) > 0 {
		var names []string
		for _, h := range info.Holders {
			name := ownerLabel(h.Owner, h.Foreign)
			if t := token(h); t != "" {
				name += " (token " + t + ")"
			}
			names = append(names, name)
		}
		by := ", held by "
		if asksFor(info.Key) != "" {
			by = ", a request: "
		}
		text += by + strings.Join(names, " and ")
	}
	if len(info.Waiters) > 0 {
		text += fmt.Sprintf(", %d waiting", len(info.Waiters))
	}
	_, err := fmt.Fprintln(w.stdout, text)
	return err
}

// draw fills the screen with as much of the table as fits.
func (w *watcher) draw(all []driver.KeyInfo, args []string) error {
	columns, lines, err := term.GetSize(int(w.stdout.Fd()))
	if err != nil || columns < 1 || lines < 4 {
		columns, lines = 80, 24
	}
	text := strings.Split(strings.TrimSuffix(layout(listing(all), columns, spareColumns...), "\n"), "\n")
	head := fmt.Sprintf("%d locks%s, %s", len(all), under(args), time.Now().Format("15:04:05"))
	text = append([]string{head, ""}, text...)
	if len(text) > lines-1 {
		text = append(text[:lines-2], fmt.Sprintf("… and %d more", len(text)-lines+2))
	}
	fmt.Fprint(w.stdout, home)
	for _, line := range text {
		fmt.Fprint(w.stdout, cut(line, columns), clearLine, "\r\n")
	}
	_, err = fmt.Fprint(w.stdout, clearBelow)
	return err
}
