package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"
)

// Some workloads are measured in other processes: copies of this program that find
// childVariable in their environment. They read a childOrder from standard input and
// answer on standard output, one line of JSON each.
const childVariable = "BATON_BENCH_CHILD"

type childOrder struct {
	Kind    string // "pair", "fight", "agent", "serve", "rls", "rls-incr"
	System  string
	At      map[string][]string // where the system's servers listen
	Rivals  []string
	Profile string // where a CPU profile goes

	Pairing // pair

	Process    int // fight: the number of this process
	Goroutines int
	Key        string
	Arena      string // file of the shared arena

	Socket string // agent, serve, rls, rls-incr: where it listens
}

// A childAnswer has one field set.
type childAnswer struct {
	Ready  bool            // it waits for the order to begin
	Result json.RawMessage // it is done
	Error  string          // it failed
}

// child is such a process, in its parent.
type child struct {
	cmd    *exec.Cmd
	stdin  io.WriteCloser // closed: the child gives up
	answer *json.Decoder
}

// startChild starts a child, by start instead of cmd.Start if that is not nil.
func startChild(ctx context.Context, order childOrder, start func(*exec.Cmd) error) (*child, error) {
	path, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	cmd.WaitDelay = time.Second
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if start == nil {
		start = (*exec.Cmd).Start
	}
	if err := start(cmd); err != nil {
		return nil, fmt.Errorf("start a measuring process: %w", err)
	}
	c := &child{cmd: cmd, stdin: stdin, answer: json.NewDecoder(stdout)}
	if err := json.NewEncoder(stdin).Encode(order); err != nil {
		return nil, errors.Join(fmt.Errorf("instruct a measuring process: %w", err), c.abort())
	}
	return c, nil
}

// ready waits until the child has connected.
func (c *child) ready() error {
	var a childAnswer
	if err := c.answer.Decode(&a); err != nil {
		return errors.Join(fmt.Errorf("a measuring process did not get ready: %w", err), c.abort())
	}
	if !a.Ready {
		return errors.Join(fmt.Errorf("a measuring process: %s", a.Error), c.abort())
	}
	return nil
}

// begin orders a ready child to begin.
func (c *child) begin() error {
	_, err := io.WriteString(c.stdin, "begin\n")
	return err
}

// hurry tells the child not to wait for locks any longer.
func (c *child) hurry() { _ = c.stdin.Close() }

// finish waits for the end of the child and decodes its result.
func (c *child) finish(result any) error {
	var a childAnswer
	if err := c.answer.Decode(&a); err != nil {
		return errors.Join(fmt.Errorf("a measuring process gave no result: %w", err), c.abort())
	}
	_ = c.stdin.Close() // it may have ended
	if err := c.cmd.Wait(); err != nil {
		return fmt.Errorf("a measuring process: %w", err)
	}
	if a.Error != "" {
		return fmt.Errorf("a measuring process: %s", a.Error)
	}
	return json.Unmarshal(a.Result, result)
}

func (c *child) abort() error {
	_ = c.stdin.Close()      // the polite way
	_ = c.cmd.Process.Kill() // the sure one
	return c.cmd.Wait()
}

// runChild is the main function of a child. It returns false if this process is no child.
func runChild() bool {
	if os.Getenv(childVariable) == "" {
		return false
	}
	in := bufio.NewReader(os.Stdin)
	out := json.NewEncoder(os.Stdout)
	answer := func(a childAnswer) {
		if err := out.Encode(a); err != nil {
			os.Exit(1) // the parent has ended
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	words := make(chan struct{}, 1)
	result, err := func() (any, error) {
		var order childOrder
		line, err := in.ReadBytes('\n')
		if err != nil {
			return nil, err
		}
		if err := json.Unmarshal(line, &order); err != nil {
			return nil, err
		}
		go func() {
			for {
				if _, err := in.ReadBytes('\n'); err != nil {
					cancel() // the parent has ended, or closed the child
					return
				}
				words <- struct{}{}
			}
		}()
		if order.Profile != "" {
			stop, err := startProfile(order.Profile)
			if err != nil {
				return nil, err
			}
			defer stop()
		}
		ready := func() error {
			answer(childAnswer{Ready: true})
			select {
			case <-words:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		switch order.Kind {
		case "pair":
			return childPair(ctx, order)
		case "fight":
			return childFight(ctx, order, ready)
		case "agent":
			return nil, childAgent(ctx, order, ready)
		case "serve":
			return nil, childServe(ctx, order, ready)
		case "rls":
			return nil, childRLS(ctx, order, ready)
		case "rls-incr":
			return nil, childIncr(ctx, order, ready)
		}
		return nil, fmt.Errorf("no order is called %q", order.Kind)
	}()
	if err != nil {
		answer(childAnswer{Error: err.Error()})
		return true
	}
	text, err := json.Marshal(result)
	if err != nil {
		answer(childAnswer{Error: err.Error()})
		return true
	}
	answer(childAnswer{Result: text})
	return true
}
