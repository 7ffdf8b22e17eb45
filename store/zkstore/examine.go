package zkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
)

// usualTTL is what most programs ask for.
const usualTTL = 15 * time.Second

// Examine implements driver.Examiner. Besides the session it asks the server of this
// connection by ZooKeeper's commands of four letters, as far as the server allows them:
// by default it answers only "srvr".
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	if s.closed.Load() {
		return nil, driver.ErrClosed
	}
	var found []driver.Finding
	add := func(name string, severity driver.Severity, what, mend string) {
		found = append(found, driver.Finding{Name: name, Severity: severity, What: what, Mend: mend})
	}
	l, err := s.session.await(ctx)
	if err != nil {
		return nil, err
	}
	s.examineSession(l, add)
	var failed []error
	if err := s.examineRoot(ctx, add); err != nil {
		failed = append(failed, err)
	}
	if err := s.examineServer(ctx, add); err != nil {
		failed = append(failed, err)
	}
	return found, errors.Join(failed...)
}

type adder func(name string, severity driver.Severity, what, mend string)

func (s *Store) examineSession(l *link, add adder) {
	if half := l.timeout / 2; half < usualTTL {
		add("session-timeout", driver.Note,
			fmt.Sprintf("the session's time-out is %v, so no TTL can be longer than %v: the default TTL is shortened to that, a longer one that was asked for is refused", l.timeout, half),
			fmt.Sprintf("for TTLs of %v ask for session=%v, and set maxSessionTimeout=%d in zoo.cfg if the server gives less", usualTTL, 2*usualTTL, (2*usualTTL).Milliseconds()))
	}
	if asked := s.asked; asked > 0 && asked != l.timeout {
		mend := fmt.Sprintf("set minSessionTimeout or maxSessionTimeout in zoo.cfg so that %d (ms) is allowed, or ask for what is granted", asked.Milliseconds())
		add("session-bounds", driver.Note, fmt.Sprintf("a session of %v was asked for and %v granted", asked, l.timeout), mend)
	}
	if l.timeout > 45*time.Second {
		add("session-long", driver.Slow,
			fmt.Sprintf("a process that dies, holding or waiting, keeps its locks for the session's time-out, %v", l.timeout),
			"ask for a shorter session with session=30s, or a lower minSessionTimeout in zoo.cfg")
	}
}

func (s *Store) examineRoot(ctx context.Context, add adder) error {
	acl, _, err := send(ctx, s, false, func(c *zk.Conn) ([]zk.ACL, error) {
		acl, _, err := c.GetACL(s.root)
		return acl, err
	})
	switch {
	case err == zk.ErrNoNode:
		add("root-missing", driver.Note, fmt.Sprintf("the node %s does not exist yet: the first lock makes it", s.root),
			fmt.Sprintf("if its name is wrong, correct the URL; else zkCli.sh create %s", s.root))
		return nil
	case err == zk.ErrNoAuth:
		add("acl-refused", driver.Unsafe, fmt.Sprintf("this user may not read the access list of %s, and perhaps not lock there: waits would not end", s.root),
			"give user and password of one who may, in the URL or by password-file")
		return nil
	case err != nil:
		return refused("read the access list of", s.root, err)
	}
	for _, a := range acl {
		if a.Scheme == "world" && a.Perms&(zk.PermCreate|zk.PermDelete|zk.PermWrite|zk.PermAdmin) != 0 {
			add("acl-open", driver.Note, fmt.Sprintf("anybody who reaches the server may create and delete nodes below %s, and so take or end locks", s.root),
				fmt.Sprintf("give a user name and a password in the URL, and let that user alone: zkCli.sh setAcl %s auth::cdrwa", s.root))
			break
		}
	}
	return nil
}

func (s *Store) examineServer(ctx context.Context, add adder) error {
	text, err := s.ask(ctx, "srvr")
	if err != nil {
		return unavailable(fmt.Errorf("ask the server about itself: %w", err))
	}
	srvr := fields(text, ": ")
	if srvr["Mode"] == "" {
		add("commands", driver.Note, "the server does not answer the command srvr, so its version and mode are not known",
			"set 4lw.commands.whitelist=srvr,conf,mntr in zoo.cfg")
		return nil
	}
	if v, _, _ := strings.Cut(srvr["Zookeeper version"], "-"); older(v, 3, 5, 3) {
		add("version", driver.Slow, fmt.Sprintf("version %s has no container nodes: an empty node is kept for every key that was ever locked", v),
			"update to 3.5.3 or newer")
	}
	switch srvr["Mode"] {
	case "standalone":
		add("standalone", driver.Note, "there is one server: while it is down no lock can be taken, and sessions that it ends meanwhile lose theirs",
			"run three servers (server.1, server.2 and server.3 in zoo.cfg) and name them all in the URL")
	case "observer":
		add("observer", driver.Slow, "this server is an observer: every lock goes on to the leader, and the sessions it keeps are known there later",
			"name the servers that vote in the URL")
	case "read-only":
		add("read-only", driver.Unsafe, "this server was cut off from the others and only reads: no lock can be taken",
			"mend the network between the servers, or name others in the URL")
	}
	s.examineSettings(ctx, add)
	return nil
}

// examineSettings looks at what a server tells only if its settings allow that.
func (s *Store) examineSettings(ctx context.Context, add adder) {
	text, err := s.ask(ctx, "conf")
	conf := fields(text, "=")
	if err != nil || conf["tickTime"] == "" {
		return
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(conf[name], 10, 64) // 0 for what is missing
		return n
	}
	if tick := time.Duration(number("tickTime")) * time.Millisecond; tick > 5*time.Second {
		add("tick", driver.Slow, fmt.Sprintf("a tick is %v: a dead process keeps its locks for a session of two ticks at least, and up to a tick more", tick),
			"set tickTime=2000 in zoo.cfg")
	} else if least := time.Duration(number("minSessionTimeout")) * time.Millisecond; tick > 0 && least > 0 && least < 2*tick {
		add("min-session", driver.Unsafe,
			fmt.Sprintf("sessions may be shorter (%v) than two ticks (2 × %v): a follower reports them too seldom, and one that is alive may be ended", least, tick),
			fmt.Sprintf("set minSessionTimeout=%d or a shorter tickTime in zoo.cfg", (2*tick).Milliseconds()))
	}
	if n := number("maxClientCnxns"); n > 0 && n < 200 {
		add("max-connections", driver.Note, fmt.Sprintf("at most %d connections are accepted from one address: more processes on a machine, or behind one gateway, find no server", n),
			"set maxClientCnxns=0 (no bound) or a higher number in zoo.cfg")
	}
	text, err = s.ask(ctx, "mntr")
	mntr := fields(text, "\t")
	updates, _ := strconv.ParseInt(mntr["zk_cnt_updatelatency"], 10, 64) // 0 if it does not count them
	if err == nil && mntr["zk_cnt_fsynctime"] == "0" && updates > 0 {
		add("force-sync", driver.Unsafe, "transactions are answered before they are on disk: after a loss of power locks may be granted again, and tokens may repeat",
			"start the server without zookeeper.forceSync=no")
	}
}

// ask sends one of the commands of four letters to the server of the connection.
func (s *Store) ask(ctx context.Context, command string) (string, error) {
	type answer struct {
		text string
		err  error
	}
	got := make(chan answer, 1)
	go func() {
		dial := s.session.Dial
		if dial == nil {
			dial = net.DialTimeout
		}
		c, err := dial("tcp", s.conn.Server(), 3*time.Second)
		if err != nil {
			got <- answer{err: err}
			return
		}
		defer c.Close()
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // otherwise the next use fails
		_, err = io.WriteString(c, command)
		var b []byte
		if err == nil {
			b, err = io.ReadAll(io.LimitReader(c, 1<<20))
		}
		if len(b) > 0 {
			err = nil // some servers reset the connection at the end
		}
		got <- answer{string(b), err}
	}()
	select {
	case a := <-got:
		return a.text, a.err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func fields(text, between string) map[string]string {
	m := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), between); ok {
			m[name] = strings.TrimSpace(value)
		}
	}
	return m
}

// older reports whether a version such as "3.8.0" is older than the one given.
func older(version string, than ...int) bool {
	for i, part := range strings.SplitN(version, ".", len(than)) {
		n, err := strconv.Atoi(part)
		if err != nil || n != than[i] {
			return err == nil && n < than[i]
		}
	}
	return false
}
