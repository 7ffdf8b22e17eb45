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
	"strconv"
	"time"
)

// childEnv is set in a child, to the URL of the store.
const childEnv = "BATON_SOAK_URL"

// The orders for the child. It answers each with a reading, on one line.
const (
	sayRead  = "read"
	sayStart = "start"
	sayCalm  = "calm"  // use no new names
	sayClose = "close" // stop the work and close the stores
)

// plant leaks something at each reading of the child, in tests.
var plant = func(*load) error { return nil }

// childMain does not return if this process is a child.
func childMain() {
	url := os.Getenv(childEnv)
	if url == "" {
		return
	}
	if err := obey(url, os.Args[1], os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// obey opens a store and carries out orders until its input ends. Its first answer is a reading from
// before the store was opened.
func obey(url, rate string, in io.Reader, out io.Writer) error {
	perSecond, err := strconv.ParseFloat(rate, 64)
	if err != nil {
		return err
	}
	answers := json.NewEncoder(out)
	before, err := read()
	if err != nil {
		return err
	}
	if err := answers.Encode(before); err != nil {
		return err
	}
	l, err := newLoad(url, perSecond)
	if err != nil {
		return err
	}
	for lines := bufio.NewScanner(in); lines.Scan(); {
		switch lines.Text() {
		case sayStart:
			l.start()
		case sayRead:
			if err := plant(l); err != nil {
				return err
			}
		case sayCalm:
			l.calm.Store(true)
		case sayClose:
			if err := l.close(); err != nil {
				return fmt.Errorf("close: %w", err)
			}
			// Goroutines of closed clients end within a moment.
			for range 100 {
				if r, err := read(); err != nil || r.Goroutines <= before.Goroutines && r.Files <= before.Files {
					break
				}
				time.Sleep(100 * time.Millisecond)
			}
		}
		r, err := read()
		if err != nil {
			return err
		}
		l.mu.Lock()
		r.Ops, r.Failed, r.Lost, r.Texts = l.ops.Load(), l.failed, l.lost, l.texts
		l.mu.Unlock()
		if err := answers.Encode(r); err != nil {
			return err
		}
	}
	return nil
}

// A child is a program that puts load on a store.
type child struct {
	cmd     *exec.Cmd
	in      io.WriteCloser
	answers *json.Decoder
}

// startChild starts the child and returns its reading from before it opened the store.
func startChild(ctx context.Context, url string, rate float64) (*child, reading, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, reading{}, err
	}
	c := &child{cmd: exec.CommandContext(ctx, self, fmt.Sprint(rate))}
	c.cmd.Env = append(os.Environ(), childEnv+"="+url)
	c.cmd.Stderr = os.Stderr
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		return nil, reading{}, err
	}
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, reading{}, err
	}
	c.answers = json.NewDecoder(out)
	if err := c.cmd.Start(); err != nil {
		return nil, reading{}, err
	}
	before, err := c.answer()
	if err != nil {
		return nil, reading{}, errors.Join(err, c.end())
	}
	return c, before, nil
}

// say sends an order to the child and returns its answer.
func (c *child) say(word string) (reading, error) {
	if _, err := io.WriteString(c.in, word+"\n"); err != nil {
		return reading{}, err
	}
	return c.answer()
}

func (c *child) answer() (r reading, err error) {
	if err = c.answers.Decode(&r); err != nil {
		err = fmt.Errorf("the load has ended: %w", err)
	}
	return r, err
}

func (c *child) end() error {
	_ = c.in.Close() // it ends with its input
	return c.cmd.Wait()
}
