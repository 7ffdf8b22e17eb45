package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"path/filepath"
	"strconv"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/agent"
	"github.com/batonhq/baton/internal/testserver"
)

// startAgent starts an agent over Redis, in a process of its own.
func startAgent(t testserver.TB, e *env) error {
	return startDoor(t, e, "agent", childOrder{Kind: "agent", At: e.at, Socket: filepath.Join(e.dir, "agent.sock")})
}

// startDoor starts a process that serves the locks of Redis at the address of the order.
func startDoor(t testserver.TB, e *env, system string, order childOrder) error {
	c, err := startChild(context.Background(), order, nil)
	if err != nil {
		return err
	}
	if err := c.ready(); err != nil {
		return err
	}
	t.Cleanup(func() {
		c.hurry()
		var nothing any
		_ = c.finish(&nothing) // the measurement has ended
	})
	e.runs(system, &server{
		addrs: []string{order.Socket}, pids: []int{c.cmd.Process.Pid},
		about: "a process with the " + system + " on it",
	})
	return nil
}

// childAgent runs in the agent's process.
func childAgent(ctx context.Context, order childOrder, ready func() error) error {
	store, end, err := (&env{at: order.At}).redisStore()
	if err != nil {
		return err
	}
	defer end()
	locks, err := baton.New(store, baton.Config{TTL: ttl})
	if err != nil {
		return err
	}
	server, err := agent.New(locks, agent.Config{})
	if err != nil {
		return err
	}
	l, err := agent.Listen(order.Socket, 0o600)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(ctx, l) }()
	if err := ready(); err != nil && ctx.Err() == nil {
		return err
	}
	return <-ended
}

// openAgent connects each goroutine to the agent by its own session.
func openAgent(e *env, goroutines int) (*room, error) {
	seats := make([]*agentSeat, 0, goroutines)
	leave := func() {
		for _, s := range seats {
			_ = s.conn.Close() // nothing is held
		}
	}
	for range goroutines {
		conn, err := net.Dial("unix", e.at["agent"][0])
		if err != nil {
			leave()
			return nil, err
		}
		s := &agentSeat{conn: conn, in: bufio.NewReader(conn)}
		seats = append(seats, s)
		if _, err := s.in.ReadBytes('\n'); err != nil { // the greeting
			leave()
			return nil, err
		}
	}
	return &room{seat: func(i int) seat { return seats[i] }, close: leave}, nil
}

type agentSeat struct {
	conn net.Conn
	in   *bufio.Reader
	id   int64
}

func (s *agentSeat) Lock(ctx context.Context, key string) (unlocker, error) {
	stop := context.AfterFunc(ctx, func() { _ = s.conn.Close() })
	defer stop()
	name, err := json.Marshal(key)
	if err != nil {
		return nil, err
	}
	s.id++
	line := append(strconv.AppendInt([]byte(`{"id":`), s.id, 10), `,"do":"lock","key":`...)
	if err := s.ask(append(append(line, name...), "}\n"...)); err != nil {
		return nil, err
	}
	return agentHeld{s, s.id}, nil
}

// ask sends a line and reads the answer.
func (s *agentSeat) ask(line []byte) error {
	if _, err := s.conn.Write(line); err != nil {
		return err
	}
	text, err := s.in.ReadBytes('\n')
	if err != nil {
		return err
	}
	var a struct {
		ID      int64
		OK      bool
		Message string
	}
	if err := json.Unmarshal(text, &a); err != nil {
		return err
	}
	switch {
	case a.ID != s.id:
		return fmt.Errorf("an answer to request %d, not %d", a.ID, s.id)
	case !a.OK:
		return errors.New(a.Message)
	}
	return nil
}

type agentHeld struct {
	seat *agentSeat
	lock int64
}

func (h agentHeld) Unlock() error {
	h.seat.id++
	line := append(strconv.AppendInt([]byte(`{"id":`), h.seat.id, 10), `,"do":"unlock","lock":`...)
	return h.seat.ask(append(strconv.AppendInt(line, h.lock, 10), "}\n"...))
}
