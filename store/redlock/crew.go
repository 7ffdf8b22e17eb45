package redlock

import "sync"

// crew runs requests to nodes. Each keeps a goroutine until the node has
// answered; those that are free wait for the next, because a new goroutine
// would have to grow its stack through the client library again.
type crew struct {
	mu     sync.Mutex
	idle   []chan job
	closed bool
}

// maxIdle is how many goroutines wait for work.
const maxIdle = 64

// job is one request, or, if f is set, that.
type job struct {
	s  *Store
	st *claim
	i  int
	t  task
	f  func()
}

func (j *job) run() {
	if j.f != nil {
		j.f()
		return
	}
	j.s.serve(j.st, j.i, j.t)
}

func (c *crew) do(j job) {
	c.mu.Lock()
	if n := len(c.idle); n > 0 {
		w := c.idle[n-1]
		c.idle = c.idle[:n-1]
		c.mu.Unlock()
		w <- j
		return
	}
	c.mu.Unlock()
	go c.work(j)
}

func (c *crew) work(j job) {
	next := make(chan job, 1)
	for {
		j.run()
		j = job{}
		c.mu.Lock()
		if c.closed || len(c.idle) == maxIdle {
			c.mu.Unlock()
			return
		}
		c.idle = append(c.idle, next)
		c.mu.Unlock()
		var ok bool
		if j, ok = <-next; !ok {
			return
		}
	}
}

func (c *crew) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	for _, w := range c.idle {
		close(w)
	}
	c.idle = nil
}
