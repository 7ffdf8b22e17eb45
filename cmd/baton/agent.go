package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"os/user"
	"strconv"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/agent"
	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/check"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/ownfile"
	"github.com/batonhq/baton/internal/roles"
	"github.com/batonhq/baton/internal/systemd"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/ratelimit"
	"github.com/batonhq/baton/ratelimit/rules"
)

// serving has the flags of "baton agent".
type serving struct {
	asking  // for --ttl
	socket  string
	systemd bool
	at      socketFlags
	users   []string
	maxHold time.Duration
	rules   []string
	roles   string
	audit   string
	keep    time.Duration
	page    string

	uids []uint32 // set by check; nil: all users
}

func (a *app) agentCommand() *cobra.Command {
	k := &serving{}
	cmd := &cobra.Command{
		Use:   "agent [flags] --socket PATH",
		Short: "Give the processes of this machine locks over a socket, in any language",
		Long: `Listens at a Unix socket. A connection is a session, which asks for locks by lines of
JSON; clients for several languages are in clients/, and docs/agent.md describes the
protocol. The agent renews what is held and waits in the queue of the store, where all
processes of the machine have one position. A process that dies frees its locks at once,
as with flock; one that is stopped keeps them, at most for --max-hold.

The socket belongs to the user who runs the agent. A user may ask for every lock if the
socket's --mode lets it write and, with --user, if it is named there. A socket that a dead
agent left is replaced; if an agent listens there, this one ends with exit code 78.

With --rules, clients may ask the limits of a file (see "baton limit check"), which is
read again when it changes.

With --roles, a user may do what a file says: lock keys below some prefixes only, or ask
limits only (docs/security.md). The file is read again when it changes, and on HUP, and
sessions end that hold what their user may no longer hold. With --audit, each denial and each change of roles is a
line of JSON in a file.

Signals TERM, INT and QUIT, and HUP without --roles and --audit, end the agent. It tells
its clients and releases their locks. A lock that a client considers held, and does not
release at once, expires.

With --page, a browser of this machine shows the locks, limits and operations of the
store, and the events of the agent, and can break a lock, which the --audit tells of. The
address with a token is printed on a terminal; else it is in a file, of the name of the
socket and ".page", that only its owner can read. Another token is drawn at each start:
docs/page.md.

If the store is away at the start, the agent tries until it is there. Sessions that begin
meanwhile get their answers then.

With --systemd the socket is the one that systemd listens at for the service, and
systemd is told when the agent is ready. Units are in deploy/systemd.

` + exitTable,
		Example: `  baton agent --socket /run/baton/agent.sock --group www-data
  baton agent --socket $XDG_RUNTIME_DIR/baton.sock --mode 0600 --max-hold 10m
  baton agent --socket /run/baton/agent.sock --mode 0666 --roles /etc/baton/roles
  echo '{"id":1,"do":"who"}' | socat -t1 - /run/baton/agent.sock`,
		Args: cobra.NoArgs,
	}
	f := cmd.Flags()
	f.StringVar(&k.socket, "socket", "", "path of the Unix socket")
	f.BoolVar(&k.systemd, "systemd", false, "take the socket from systemd")
	k.at.register(f)
	f.StringArrayVar(&k.users, "user", nil, "user, by name or number, that may use it (repeatable; default: all that the mode allows)")
	f.DurationVar(&k.maxHold, "max-hold", 0, "end the session of a client that has held a lock for this long (default: never)")
	f.DurationVar(&k.ttl, "ttl", baton.DefaultTTL, "how long a lock outlives an agent that crashed")
	f.StringVar(&k.roles, "roles", "", "`FILE` that says what each user may do (default: everything)")
	f.StringVar(&k.audit, "audit", "", "`FILE` for a line for each denial, and for each break by the page; - is standard error")
	f.StringArrayVar(&k.rules, "rules", nil, "`FILE` with limits that clients may ask, or a folder of such files; may be repeated")
	f.DurationVar(&k.keep, "keep", 24*time.Hour, "how long outcomes of once are kept")
	f.StringVar(&k.page, "page", "", "serve a page with locks, limits and events at `ADDR` of this machine, such as 127.0.0.1:7380")
	_ = cmd.RegisterFlagCompletionFunc("rules", cobra.FixedCompletions([]string{"yaml", "yml"}, cobra.ShellCompDirectiveFilterFileExt))
	a.metricsFlag(cmd)
	for _, of := range []string{"socket", "mode", "group"} {
		cmd.MarkFlagsMutuallyExclusive("systemd", of)
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return does(func(ctx context.Context, _ []string) error {
			a.speakUp() // its messages are a log
			if err := a.measure(cmd); err != nil {
				return err
			}
			if err := k.check(cmd); err != nil {
				return err
			}
			return a.serveAgent(ctx, k)
		})(cmd, args)
	}
	return cmd
}

// check refuses flags that make no sense. It needs no store.
func (k *serving) check(cmd *cobra.Command) error {
	if err := k.asking.check(cmd, "agent"); err != nil { // only its --ttl is a flag here
		return err
	}
	if cmd.Flags().Changed("max-hold") && k.maxHold <= 0 {
		return usage("--max-hold %v: it is a duration above zero", k.maxHold)
	}
	if k.audit != "" && k.roles == "" && k.page == "" {
		return usage("--audit: without --roles nothing is denied, and without --page nothing is broken")
	}
	if k.keep < check.MinRecordKeep || k.keep > check.MaxRecordKeep {
		return usage("--keep %v: it is between %v and ten years", k.keep, check.MinRecordKeep)
	}
	if !cmd.Flags().Changed("socket") && !k.systemd {
		return usage("give --socket PATH (clients look at /run/baton/agent.sock), or --systemd")
	}
	if cmd.Flags().Changed("socket") && k.socket == "" {
		return usage("--socket: the path is empty")
	}
	if cmd.Flags().Changed("page") {
		if err := checkPage(k.page); err != nil {
			return err
		}
	}
	if err := k.at.check(); err != nil {
		return err
	}
	for _, name := range k.users {
		uid, err := number(name, func() (string, error) {
			u, err := user.Lookup(name)
			if err != nil {
				return "", err
			}
			return u.Uid, nil
		})
		if err != nil {
			return usage("--user %s: %w", safe(name), err)
		}
		k.uids = append(k.uids, uint32(uid))
	}
	return nil
}

// listen makes the socket, or takes the one of systemd.
func (k *serving) listen() (net.Listener, error) {
	if k.systemd {
		l, err := systemd.Listener()
		if err != nil {
			return nil, &exit{Code: exitConfig, Err: err}
		}
		// Other sockets have no mode: users of other hosts, or all of this one, could
		// connect.
		if at := l.Addr(); at.Network() != "unix" || at.String() == "" || at.String()[0] == '@' {
			l.Close()
			return nil, &exit{Code: exitConfig, Err: fmt.Errorf("the socket of systemd is %s of the network %s: the agent needs ListenStream= with a path", safe(strconv.Quote(at.String())), at.Network())}
		}
		return l, nil
	}
	return k.at.listen(k.socket)
}

func (a *app) serveAgent(ctx context.Context, k *serving) (err error) {
	sigs, stopSigs := listen(syscall.SIGTERM, syscall.SIGINT, syscall.SIGQUIT, syscall.SIGHUP)
	defer stopSigs()
	pipe := make(chan os.Signal, 1) // a pipe whose reader has gone must not end the agent
	signal.Notify(pipe, syscall.SIGPIPE)
	defer signal.Stop(pipe)
	var file *rules.File
	if len(k.rules) > 0 {
		if file, err = rules.Open(k.rules...); err != nil {
			return &exit{Code: exitConfig, Err: ofRules(err)}
		}
	}
	log, err := a.openAudit(k.audit)
	if err != nil {
		return err
	}
	watch := ownfile.NewWatch(k.roles)
	who, err := a.openUsers(k, log)
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go watch.Follow(ctx, hangUp(ctx, sigs))
	l, err := k.listen()
	if err != nil {
		return err
	}
	defer l.Close()
	var browsers net.Listener
	if k.page != "" {
		if browsers, err = a.listenPage(k.page); err != nil {
			return err
		}
		defer browsers.Close()
	}
	reloads := func(s os.Signal) bool {
		return s == syscall.SIGHUP && (who != nil || k.audit != "")
	}
	reload := func() (changed bool) {
		a.reopenAudit(log)
		return who != nil && who.reload()
	}
	owner := check.Owner(os.Getpid(), "baton agent")
	opened, err := a.openLater(ctx, sigs, func(s os.Signal) bool {
		if reloads(s) {
			reload()
			return false
		}
		return true
	}, func() baton.Config { return baton.Config{TTL: k.ttl, Owner: owner} }, k.checkTTL)
	locks, store := opened.locks, opened.store
	if err != nil || store == nil {
		return err
	}
	defer shut(store)
	cfg := agent.Config{MaxHold: k.maxHold, Users: k.uids, Caller: who.caller(), Logger: a.warner()}
	if file != nil {
		if cfg.Limits, err = a.follow(ctx, store, file); err != nil {
			return err
		}
	}
	of := baton.Config{TTL: k.ttl, Owner: owner, Logger: a.logger(), Events: a.told().Locks}
	cfg.Once, err = once.New(store, once.Config{Keep: k.keep, Lock: of, Events: a.told().Once})
	if err != nil && !errors.Is(err, baton.ErrUnsupported) { // without records the agent refuses once
		return err
	}
	server, err := agent.New(locks, cfg)
	if err != nil {
		return err
	}
	if browsers != nil {
		pageEnded, err := a.servePage(ctx, k, browsers, a.pageLog(k, log), locks, store, cfg.Once)
		if err != nil {
			return err
		}
		defer func() { stop(); <-pageEnded }()
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	a.ready(l, store.Traits())
	for {
		select {
		case err := <-ended:
			return err
		case s := <-sigs:
			if reloads(s) {
				if reload() {
					server.Recheck()
				}
				continue
			}
			a.say("%v: releasing all locks", s)
		}
		a.tellSupervisor("STOPPING=1")
		stop()
		return <-ended
	}
}

// users has what the users of the host may do. With a nil *users all may do everything.
type users struct {
	app  *app
	path string
	file *roles.File
	log  *audit
}

func (a *app) openUsers(k *serving, log *audit) (u *users, err error) {
	if k.roles == "" {
		return nil, nil
	}
	u = &users{app: a, path: k.roles, log: log}
	if u.file, err = a.openRoles(k.roles); err != nil {
		return nil, err
	}
	if _, _, n := u.file.Table().Count(); n == 0 {
		return nil, &exit{Code: exitConfig, Err: fmt.Errorf("%s: it has no line for a user of this machine, such as: uid:%d - app/=lock", redactURL(k.roles), os.Getuid())}
	}
	return u, nil
}

// caller returns the Caller of an agent.Config.
func (u *users) caller() func(uid int64) (agent.Caller, error) {
	if u == nil {
		return nil
	}
	return func(uid int64) (agent.Caller, error) {
		r, err := u.file.Table().ByUID(uid)
		if err != nil {
			u.log.Warn("a user was refused", "uid", uid, "reason", err.Error())
			return nil, err
		}
		return audited{r, u.log}, nil
	}
}

// audited is a role that tells the audit each denial, and what is given back to limits.
type audited struct {
	*roles.Role
	log *audit
}

func (c audited) May(verb, key string) error {
	err := c.Role.May(verb, key)
	switch {
	case err != nil:
		c.log.Warn("a request was denied", "caller", c.Name(), "verb", verb, "key", key)
	case verb == roles.GiveBack:
		c.log.Warn("a limit is given back", "caller", c.Name(), "key", key)
	}
	return err
}

// reload reads the file again. It reports whether roles have changed.
func (u *users) reload() bool {
	return u.app.reloadRoles(u.file, u.path, u.log)
}

// follow makes a limiter of a file of rules, and reloads the rules until ctx ends.
func (a *app) follow(ctx context.Context, store driver.Store, file *rules.File) (*rules.Limiter, error) {
	counts, ok := driver.As[limits.Store](store)
	if !ok {
		return nil, &exit{Code: exitConfig, Err: fmt.Errorf("--rules: store %s has no rate limits", store.Traits().Store)}
	}
	limiter, err := rules.New(counts, file.Rules(), // the store reports its own requests
		ratelimit.Observe(a.told().Limits), ratelimit.Logger(a.loggerFrom(slog.LevelInfo)))
	if err != nil {
		return nil, &exit{Code: exitConfig, Err: err}
	}
	go func() {
		_ = limiter.Follow(ctx, file, func(err error) {
			if err != nil {
				a.complain("the previous rules stay in force: %s", safeError(ofRules(err)))
				return
			}
			a.say("the rules have changed")
		})
	}()
	return limiter, nil
}

func (a *app) ready(l net.Listener, t driver.Traits) {
	if !t.Processes {
		a.say("store %s is not shared with other processes: only the clients of this agent exclude each other", t.Store)
	}
	a.say("agent over store %s listens at %s", a.opened, safe(l.Addr().String()))
	a.tellSupervisor("READY=1")
}

// tellSupervisor tells systemd a state, if this process is its service.
func (a *app) tellSupervisor(state string) {
	if err := systemd.Notify(state); err != nil {
		a.complain("%s", safe(err.Error()))
	}
}

// warner returns a log of warnings that --quiet turns off. Beyond a number in each second
// it omits them: a failing store causes one at each call, and a client can cause any
// number.
func (a *app) warner() *slog.Logger {
	return slog.New(&fewWarnings{Handler: a.loggerFrom(slog.LevelWarn).Handler(), warnings: newWarnings(maxFailures)})
}

// loggerFrom returns a log from a level on, which --quiet turns off. With --verbose it is
// the whole log.
func (a *app) loggerFrom(level slog.Level) *slog.Logger {
	if a.verbose || a.quiet {
		return a.logger()
	}
	return slog.New(slog.NewTextHandler(a.messages, &slog.HandlerOptions{Level: level}))
}
