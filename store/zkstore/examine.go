package zkstore

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/bound"
	"github.com/batonhq/baton/internal/findings"
)

// usualTTL is the TTL of most programs.
const usualTTL = 15 * time.Second

// Examine implements driver.Examiner. It examines the session, and asks the server of
// this connection by ZooKeeper's four-letter commands, as far as the server allows them:
// by default only "srvr".
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	if s.closed.Load() {
		return nil, driver.ErrClosed
	}
	l, err := s.session.await(ctx)
	if err != nil {
		return nil, err
	}
	all := s.judgeSession(l)
	err = errors.Join(s.examineRoot(ctx, &all), s.examineServer(ctx, &all))
	return all, err
}

func (s *Store) judgeSession(l *link) (all findings.Table) {
	half := l.timeout / 2
	all.Say(half < usualTTL, "session-timeout", driver.Note,
		fmt.Sprintf("for TTLs of %v ask for session=%v, and set maxSessionTimeout=%d in zoo.cfg if the server gives less", usualTTL, 2*usualTTL, (2*usualTTL).Milliseconds()),
		"the session's time-out is %v, so no TTL can be longer than %v: the default TTL is shortened to that, a longer one that was asked for is refused", l.timeout, half)
	all.Say(s.asked > 0 && s.asked != l.timeout, "session-bounds", driver.Note,
		fmt.Sprintf("set minSessionTimeout or maxSessionTimeout in zoo.cfg so that %d (ms) is allowed, or ask for what is granted", s.asked.Milliseconds()),
		"a session of %v was asked for and %v granted", s.asked, l.timeout)
	all.Say(l.timeout > 45*time.Second, "session-long", driver.Slow, "ask for a shorter session with session=30s, or a lower minSessionTimeout in zoo.cfg",
		"a process that dies, holding or waiting, keeps its locks for the session's time-out, %v", l.timeout)
	return all
}

func (s *Store) examineRoot(ctx context.Context, all *findings.Table) error {
	acl, _, err := send(ctx, s, false, func(c *zk.Conn) ([]zk.ACL, error) {
		acl, _, err := c.GetACL(s.root)
		return acl, err
	})
	if err != nil && err != zk.ErrNoNode && err != zk.ErrNoAuth {
		return refused("read the access list of", s.root, err)
	}
	all.Say(err == zk.ErrNoNode, "root-missing", driver.Note, "if its name is wrong, correct the URL; else zkCli.sh create "+s.root,
		"the node %s does not exist yet: the first lock makes it", s.root)
	all.Say(err == zk.ErrNoAuth, "acl-refused", driver.Unsafe, "give the user and the password of a user who may, in the URL or by password-file",
		"this user may not read the access list of %s, and perhaps not lock there: waits would not end", s.root)
	open := slices.ContainsFunc(acl, func(a zk.ACL) bool {
		return a.Scheme == "world" && a.Perms&(zk.PermCreate|zk.PermDelete|zk.PermWrite|zk.PermAdmin) != 0
	})
	all.Say(open, "acl-open", driver.Note, "give a user name and a password in the URL, and let that user alone: zkCli.sh setAcl "+s.root+" auth::cdrwa",
		"any client that reaches the server may create and delete nodes below %s, and so take or end locks", s.root)
	return nil
}

func (s *Store) examineServer(ctx context.Context, all *findings.Table) error {
	text, err := s.ask(ctx, "srvr")
	if err != nil {
		return unavailable(fmt.Errorf("ask the server about itself: %w", err))
	}
	srvr := fields(text, ": ")
	mode := srvr["Mode"]
	all.Say(mode == "", "commands", driver.Note, "set 4lw.commands.whitelist=srvr,conf,mntr in zoo.cfg",
		"the server does not answer the command srvr, so its version and mode are not known")
	if mode == "" {
		return nil
	}
	version, _, _ := strings.Cut(srvr["Zookeeper version"], "-")
	all.Say(findings.Older(version, 3, 5, 3), "version", driver.Slow, "update to 3.5.3 or newer",
		"version %s has no container nodes: an empty node is kept for every key that was ever locked", version)
	all.Say(mode == "standalone", "standalone", driver.Note, "run three servers (server.1, server.2 and server.3 in zoo.cfg) and name them all in the URL",
		"there is one server: while it is down no lock can be taken, and sessions that it ends meanwhile lose theirs")
	all.Say(mode == "observer", "observer", driver.Slow, "name the servers that vote in the URL",
		"this server is an observer: every lock goes on to the leader, and the sessions it keeps are known there later")
	all.Say(mode == "read-only", "read-only", driver.Unsafe, "repair the network between the servers, or name others in the URL",
		"this server was cut off from the others and only reads: no lock can be taken")
	s.examineSettings(ctx, all)
	return nil
}

// examineSettings examines what a server tells only with certain settings.
func (s *Store) examineSettings(ctx context.Context, all *findings.Table) {
	text, err := s.ask(ctx, "conf")
	conf := fields(text, "=")
	if err != nil || conf["tickTime"] == "" {
		return
	}
	number := func(name string) int64 {
		n, _ := strconv.ParseInt(conf[name], 10, 64) // 0 for a missing one
		return n
	}
	tick, least := time.Duration(number("tickTime"))*time.Millisecond, time.Duration(number("minSessionTimeout"))*time.Millisecond
	long := tick > 5*time.Second
	all.Say(long, "tick", driver.Slow, "set tickTime=2000 in zoo.cfg", "a tick is %v: a dead process keeps its locks for a session of two ticks at least, and up to a tick more", tick)
	all.Say(!long && least > 0 && least < 2*tick, "min-session", driver.Unsafe,
		fmt.Sprintf("set minSessionTimeout=%d or a shorter tickTime in zoo.cfg", (2*tick).Milliseconds()),
		"sessions may be shorter (%v) than two ticks (2 × %v): a follower reports them too seldom, and one that is alive may be ended", least, tick)
	n := number("maxClientCnxns")
	all.Say(n > 0 && n < 200, "max-connections", driver.Note, "set maxClientCnxns=0 (no bound) or a higher number in zoo.cfg",
		"at most %d connections are accepted from one address: more processes on a machine, or behind one gateway, find no server", n)
	text, err = s.ask(ctx, "mntr")
	mntr := fields(text, "\t")
	updates, _ := strconv.ParseInt(mntr["zk_cnt_updatelatency"], 10, 64) // 0 if it does not count them
	all.Say(err == nil && mntr["zk_cnt_fsynctime"] == "0" && updates > 0, "force-sync", driver.Unsafe, "start the server without zookeeper.forceSync=no",
		"transactions are answered before they are on disk: after a loss of power locks may be granted again, and tokens may repeat")
}

// ask sends a four-letter command to the server of the connection.
func (s *Store) ask(ctx context.Context, command string) (string, error) {
	return bound.Call(ctx, func() (string, error) {
		dial := s.session.Dial
		if dial == nil {
			dial = net.DialTimeout
		}
		c, err := dial("tcp", s.conn.Server(), 3*time.Second)
		if err != nil {
			return "", err
		}
		defer c.Close()
		stop := context.AfterFunc(ctx, func() { c.Close() })
		defer stop()
		_ = c.SetDeadline(time.Now().Add(5 * time.Second)) // after a failure the next use fails
		if _, err = io.WriteString(c, command); err != nil {
			return "", err
		}
		b, err := io.ReadAll(io.LimitReader(c, 1<<20))
		if len(b) > 0 {
			err = nil // some servers reset the connection at the end
		}
		return string(b), err
	}, nil)
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
