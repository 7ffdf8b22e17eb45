package main

import (
	"context"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/adapters/metrics"
	"github.com/batonhq/baton/election"
	"github.com/batonhq/baton/internal/textfile"
)

// What --metrics says of the command itself. docs/metrics.md lists the same.
var (
	commandStart = metrics.Instrument{
		Name: "baton.command.start_timestamp", Kind: metrics.Gauge, Unit: "s",
		Help: "When the last run began: counters are since then.",
	}
	commandEnd = metrics.Instrument{
		Name: "baton.command.end_timestamp", Kind: metrics.Gauge, Unit: "s",
		Help: "When the last finished run ended.",
	}
	commandExit = metrics.Instrument{
		Name: "baton.command.exit_code", Kind: metrics.Gauge,
		Help: "Exit code of the last finished run.",
	}
	commandSuccess = metrics.Instrument{
		Name: "baton.command.success_timestamp", Kind: metrics.Gauge, Unit: "s",
		Help: "When the last run ended that had the exit code 0 and was not skipped.",
	}
)

const (
	// measureEvery is how often the metrics are written while a command runs.
	measureEvery = 15 * time.Second

	// measureEnd is how long the end of a run waits for a file system.
	measureEnd = 5 * time.Second
)

func (a *app) metricsFlag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&a.metricsFile, "metrics", "", `write metrics to `+"`FILE`"+`, for node_exporter ("baton help metrics")`)
	_ = cmd.RegisterFlagCompletionFunc("metrics", cobra.FixedCompletions([]string{"prom"}, cobra.ShellCompDirectiveFilterFileExt))
}

// measured collects what one run of baton does, for --metrics.
type measured struct {
	metrics.Events
	path    string
	all     *textfile.Metrics
	warn    func(error)
	began   time.Time
	skipped bool // the command did not have to run

	now     chan struct{} // write soon
	stop    chan struct{} // closed at the end
	stopped chan struct{} // closed after the last write
}

// measure begins to measure if --metrics was given. The file is written regularly, and by
// conclude.
func (a *app) measure(cmd *cobra.Command) error {
	if !cmd.Flags().Changed("metrics") {
		return nil
	}
	if name := filepath.Base(a.metricsFile); name == ".prom" || !strings.HasSuffix(name, ".prom") {
		return usage("--metrics %s: the name ends in .prom, or node_exporter does not read it", safe(a.metricsFile))
	}
	m, err := newMeasured(a.metricsFile, func(err error) {
		a.complain("metrics are not written: --metrics %s: %s", safe(redactURL(a.metricsFile)), safe(ofPage(err).Error()))
	})
	if err != nil {
		return err
	}
	a.measured = m
	go m.write()
	return nil
}

func newMeasured(path string, warn func(error)) (*measured, error) {
	m := &measured{
		path: path, all: textfile.New(path), began: time.Now(),
		now: make(chan struct{}, 1), stop: make(chan struct{}), stopped: make(chan struct{}),
	}
	failing := false
	m.warn = func(err error) { // once, not every 15 s
		if err != nil && !failing {
			warn(err)
		}
		failing = err != nil
	}
	events, err := metrics.New(m.all, metrics.Config{})
	if err != nil {
		return nil, err
	}
	soon := func(context.Context, election.LeadershipEvent) { m.soon() }
	m.Events = metrics.Join(events, metrics.Events{
		Locks:     &baton.Events{Lost: func(context.Context, baton.LockEvent) { m.soon() }},
		Elections: &election.Events{Elected: soon, Ended: soon},
	})
	count := m.Locks.Failed
	m.Locks.Failed = func(ctx context.Context, e baton.LockEvent) {
		if first, ok := ctx.Value(firstKey{}).(*firstCall); ok {
			first.failed = func() { count(ctx, e) }
			return
		}
		count(ctx, e)
	}
	return m, nil
}

// firstCall keeps back a failure of the first of two calls for one lock: it counts only
// if there is no second call.
type firstCall struct{ failed func() }

type firstKey struct{}

// of returns the context for the first call.
func (f *firstCall) of(ctx context.Context) context.Context {
	return context.WithValue(ctx, firstKey{}, f)
}

// only says that there is no second call.
func (f *firstCall) only() {
	if f.failed != nil {
		f.failed()
	}
}

func (m *measured) soon() {
	select {
	case m.now <- struct{}{}:
	default:
	}
}

// write writes the file regularly until stop is closed.
func (m *measured) write() {
	defer close(m.stopped)
	every := time.NewTicker(measureEvery)
	defer every.Stop()
	for {
		select {
		case <-every.C:
		case <-m.now:
		case <-m.stop:
			return
		}
		m.warn(m.put())
	}
}

// put writes the file. ended are the metrics of a finished run; while a run lasts, the
// file keeps those of the run before.
func (m *measured) put(ended ...textfile.Value) error {
	return textfile.Replace(m.path, func(old []byte) []byte {
		values := []textfile.Value{{Of: commandStart, Value: timestamp(m.began)}}
		for _, i := range []metrics.Instrument{commandEnd, commandExit, commandSuccess} {
			if v, ok := textfile.Find(old, i); ok {
				values = append(values, textfile.Value{Of: i, Value: v})
			}
		}
		return m.all.Text(append(values, ended...)...)
	})
}

// conclude writes the metrics of a run that ends with the code. Its own failures do not
// change the code.
func (a *app) conclude(code int) {
	m := a.measured
	if m == nil {
		return
	}
	a.measured = nil
	ended := []textfile.Value{{Of: commandEnd, Value: timestamp(time.Now())}, {Of: commandExit, Value: float64(code)}}
	if code == 0 && !m.skipped {
		ended = append(ended, textfile.Value{Of: commandSuccess, Value: ended[0].Value})
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		close(m.stop)
		<-m.stopped
		m.warn(m.put(ended...))
	}()
	select {
	case <-done:
	case <-time.After(measureEnd):
		a.complain("metrics are not written: no answer in %v from where %s is", measureEnd, safe(redactURL(m.path)))
	}
}

// show makes metrics of what the packages report from now on, for a program that serves
// them itself.
func (a *app) show() (*textfile.Metrics, error) {
	all := textfile.New("")
	var err error
	a.shown, err = metrics.New(all, metrics.Config{})
	return all, err
}

// told is the receiver of the packages' events.
func (a *app) told() metrics.Events {
	all := a.shown
	if a.measured != nil {
		all = a.measured.Events
	}
	if a.recent != nil {
		all = metrics.Join(all, a.recent.Events())
	}
	return all
}

// lead reports that this process was elected. over reports the end of its term.
func (a *app) lead(store, name string, lease *baton.Lease) (over func()) {
	told := a.told().Elections
	if told == nil {
		return func() {}
	}
	began, ended := time.Now(), make(chan time.Time, 1)
	go func() {
		<-lease.Done()
		ended <- time.Now()
	}()
	e := election.LeadershipEvent{Store: store, Name: name, Token: lease.Token()}
	told.Elected(context.Background(), e)
	return func() {
		e.Led = time.Since(began)
		select {
		case at := <-ended: // the command may have been stopped after the end of the lease
			e.Led = at.Sub(began)
		default:
		}
		told.Ended(context.Background(), e)
	}
}

// unelected reports why the store could not be asked.
func (a *app) unelected(store, name string, err error) {
	if told := a.told().Elections; told != nil {
		told.Failed(context.Background(), election.LeadershipEvent{Store: store, Name: name, Err: err})
	}
}

func timestamp(t time.Time) float64 { return float64(t.UnixMilli()) / 1000 }
