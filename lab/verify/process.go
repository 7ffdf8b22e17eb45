package verify

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/history"
)

// A process is one client, in all its lives. It is a fault.Client.
type process struct {
	trial *trial
	seat  int

	mu   sync.Mutex
	life *life
	died []int // the clients that were killed
}

// A life of a client, an agent or a server is one process of the system, from its start
// to its end.
type life struct {
	name   string // for people
	client int    // as in the history
	cmd    *exec.Cmd
	in     io.WriteCloser
	log    string // the file of its standard error

	mu      sync.Mutex
	said    map[say]int
	words   []word        // those that report problems
	changed chan struct{} // closed and replaced at every message
	ended   chan struct{} // closed when the process has ended
	meant   bool          // Signal or end has killed it deliberately
}

// start begins a new life, which gets its orders and waits.
func (p *process) start() (*life, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	o := p.trial.orders(p.seat)
	o.Client = 100*len(p.died) + p.seat + 1
	o.Log = p.trial.path(fmt.Sprintf("client-%d.history", o.Client))
	cmd, err := p.command()
	if err != nil {
		return nil, err
	}
	l, err := begin(cmd, fmt.Sprintf("client %d", o.Client), p.trial.path(fmt.Sprintf("client-%d.log", o.Client)), o)
	if err != nil {
		return nil, err
	}
	l.client, p.life = o.Client, l
	return l, nil
}

// begin starts a process, which gets its orders by standard input.
func begin(cmd *exec.Cmd, name, log string, orders any) (*life, error) {
	l := &life{name: name, log: log, cmd: cmd, said: make(map[say]int), changed: make(chan struct{}), ended: make(chan struct{})}
	stderr, err := os.OpenFile(l.log, os.O_CREATE|os.O_WRONLY|os.O_TRUNC, 0o600)
	if err != nil {
		return nil, err
	}
	defer stderr.Close()
	l.cmd.Stderr = stderr
	// Its own process group: Ctrl-C is for the conductor only, and if the conductor dies,
	// the system wakes and ends stopped clients.
	l.cmd.SysProcAttr = apart()
	if l.in, err = l.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := l.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := l.cmd.Start(); err != nil {
		return nil, err
	}
	go l.listen(out)
	if err := json.NewEncoder(l.in).Encode(orders); err != nil {
		l.end()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return l, nil
}

// listen reads the client's messages until it ends.
func (l *life) listen(out io.Reader) {
	lines := bufio.NewReader(out)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil {
			break
		}
		var w word
		if json.Unmarshal(line, &w) != nil {
			w = word{sayFailed, "it said " + strings.TrimSpace(string(line))}
		}
		l.mu.Lock()
		l.said[w.Say]++
		if w.Text != "" {
			l.words = append(l.words, w)
		}
		close(l.changed)
		l.changed = make(chan struct{})
		l.mu.Unlock()
	}
	_ = l.cmd.Wait() // its state has the result
	close(l.ended)
}

// count returns how often the client has sent a message.
func (l *life) count(s say) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said[s]
}

// await waits for the n-th message of a kind.
func (l *life) await(ctx context.Context, s say, n int) error {
	for {
		l.mu.Lock()
		said, changed := l.said[s], l.changed
		l.mu.Unlock()
		if said >= n {
			return nil
		}
		select {
		case <-changed:
		case <-l.ended:
			return fmt.Errorf("%s has ended by itself (%v)%s", l.name, l.cmd.ProcessState, l.tail())
		case <-ctx.Done():
			return fmt.Errorf("%s did not come to %q: %w", l.name, s, context.Cause(ctx))
		}
	}
}

// tail is the last message of a failed client, for people.
func (l *life) tail() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, w := range l.words {
		if w.Say == sayFailed {
			return ": " + w.Text
		}
	}
	text, _ := os.ReadFile(l.log) // without it there is no message
	if i := strings.Index(string(text), "panic:"); i >= 0 {
		text = text[i:]
	}
	lines := strings.SplitN(string(text), "\n", 20)
	return ":\n" + strings.Join(lines[:min(len(lines), 19)], "\n")
}

func (l *life) order(o order) error {
	if err := json.NewEncoder(l.in).Encode(o); err != nil {
		return fmt.Errorf("order %s to %s: %w", l.name, o.Do, err)
	}
	return nil
}

// end kills the process, unless it has ended, and returns after its end.
func (l *life) end() {
	l.mu.Lock()
	l.meant = true
	l.mu.Unlock()
	_ = l.cmd.Process.Kill() // fails only if the process has ended
	<-l.ended
	_ = l.in.Close()
}

// now returns the present life.
func (p *process) now() *life {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.life
}

// Signal implements fault.Client.
func (p *process) Signal(s os.Signal) error {
	l := p.now()
	if s == syscall.SIGKILL {
		p.trial.marks.add(history.Mark{At: history.Now(), What: history.Killed, Client: l.client})
		l.end()
		p.mu.Lock()
		p.died = append(p.died, l.client)
		p.mu.Unlock()
		return nil
	}
	if err := l.cmd.Process.Signal(s); err != nil {
		return fmt.Errorf("%s: %w%s", l.name, err, l.tail())
	}
	return nil
}

// Revive implements fault.Client.
func (p *process) Revive() error {
	l, err := p.start()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*openTimeout)
	defer cancel()
	return errors.Join(l.await(ctx, sayReady, 1), l.order(order{Do: doBegin}))
}

// Holds implements fault.Client.
func (p *process) Holds() bool {
	l := p.now()
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.said[sayHolds] > l.said[sayFree]
}

// StopAtWrite implements fault.Client.
func (p *process) StopAtWrite(ctx context.Context) error {
	l := p.now()
	stops, goesOn := l.count(sayStops), l.count(sayGoesOn)
	if err := l.order(order{Do: doStop}); err != nil {
		return err
	}
	err := l.await(ctx, sayStops, stops+1)
	if err == nil || ctx.Err() == nil {
		return err
	}
	// The client may be about to stop, or have stopped: make it continue.
	if err := l.order(order{Do: doNotStop}); err != nil {
		return err
	}
	for end := time.Now().Add(openTimeout); ; {
		if err := p.Signal(fault.Continue); err != nil {
			return err
		}
		again, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		err := l.await(again, sayGoesOn, goesOn+1)
		cancel()
		if err == nil || time.Now().After(end) {
			return errors.Join(ctx.Err(), err)
		}
	}
}

// Suspend implements fault.Client.
func (p *process) Suspend(d time.Duration) error {
	return p.now().order(order{Do: doSuspend, For: d})
}

// path is a file in the private folder of the trial.
func (t *trial) path(name string) string { return filepath.Join(t.dir, name) }
