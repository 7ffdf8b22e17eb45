//go:build linux

package faulttest

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// networked are the stores that a process reaches by connections, behind
// proxies of its own: those that open returns the URL of. Each server is there
// once, however many processes a test has.
var networked = map[string]func(t *testing.T) (direct string, open func() (through string, proxies []*faultproxy.Proxy)){
	"redis": func(t *testing.T) (string, func() (string, []*faultproxy.Proxy)) {
		return behindOne(t, "redis://"+testserver.SharedRedis(t).Addr, testserver.SharedRedis(t).Addr)
	},
	"redlock": func(t *testing.T) (string, func() (string, []*faultproxy.Proxy)) {
		nodes := testserver.SharedRedisNodes(t)
		return redlockURL(testserver.Addrs(nodes), 0), func() (string, []*faultproxy.Proxy) {
			proxies, addrs := behind(t, nodes)
			return redlockURL(addrs, 0), proxies
		}
	},
	"postgres": func(t *testing.T) (string, func() (string, []*faultproxy.Proxy)) {
		s := testserver.SharedPostgres(t)
		return behindOne(t, s.URL(s.Database(t)), s.Addr)
	},
	"mysql": func(t *testing.T) (string, func() (string, []*faultproxy.Proxy)) {
		addr := testserver.SharedMariaDB(t).Addr
		return behindOne(t, mysqlURL(addr), addr)
	},
	"etcd": func(t *testing.T) (string, func() (string, []*faultproxy.Proxy)) {
		addr := testserver.SharedEtcd(t).Addr
		return behindOne(t, "etcd://"+addr+"/"+t.Name(), addr)
	},
	"zookeeper": func(t *testing.T) (string, func() (string, []*faultproxy.Proxy)) {
		addr := testserver.SharedZooKeeper(t).Addr
		return behindOne(t, "zk://"+addr+"/"+t.Name()+"?session=40s", addr)
	},
}

func behindOne(t *testing.T, url, addr string) (string, func() (string, []*faultproxy.Proxy)) {
	return url, func() (string, []*faultproxy.Proxy) {
		p := faultproxy.New(t, addr)
		return strings.Replace(url, addr, p.Addr, 1), []*faultproxy.Proxy{p}
	}
}

// A lossy is a store as one process has it, of whose calls a test can choose
// one that loses an answer. The connections are real, and so is their end.
type lossy struct {
	driver.Store
	driver.Inspector
	driver.Watcher
	proxies []*faultproxy.Proxy

	mu    sync.Mutex
	next  []*loss
	wakes map[string]func(driver.Hint) // by the ID of the claim
	made  map[string]int               // calls that were answered
}

func newLossy(t *testing.T, open func() (string, []*faultproxy.Proxy)) *lossy {
	t.Helper()
	url, proxies := open()
	s := openStore(t, url)
	return &lossy{
		Store: s, Inspector: s.(driver.Inspector), Watcher: s.(driver.Watcher), proxies: proxies,
		wakes: map[string]func(driver.Hint){}, made: map[string]int{},
	}
}

// A loss is a call that loses the answer to one of its requests.
type loss struct {
	call string
	key  string                                                                   // "": any
	nth  int                                                                      // of its requests to each server
	cut  func(*faultproxy.Proxy, func(request []byte) bool) (cut <-chan struct{}) // after the effect or before

	over   chan struct{} // closed when the call has returned
	caught atomic.Bool   // it made that many, and that one was not answered
}

// after and before the effect.
var (
	after  = (*faultproxy.Proxy).CutAfterRequest
	before = (*faultproxy.Proxy).CutBeforeRequest
)

// lose has the next such call lose the answer to the nth request that it makes, if it
// makes that many.
func (s *lossy) lose(call string, nth int, cut func(*faultproxy.Proxy, func([]byte) bool) <-chan struct{}) *loss {
	return s.loseOf("", call, nth, cut)
}

// loseOf is lose for a call about that key.
func (s *lossy) loseOf(key, call string, nth int, cut func(*faultproxy.Proxy, func([]byte) bool) <-chan struct{}) *loss {
	l := &loss{call: call, key: key, nth: nth, cut: cut, over: make(chan struct{})}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.next = append(s.next, l)
	return l
}

// happened waits for the call, and reports whether it lost an answer.
func (l *loss) happened(t *testing.T) bool {
	t.Helper()
	select {
	case <-l.over:
	case <-time.After(60 * time.Second):
		t.Fatalf("no call of %s", l.call)
	}
	return l.caught.Load()
}

// cancelRequest begins what a client of PostgreSQL sends over a connection of its own
// when it gives another one up. The server never answers it.
var cancelRequest = []byte("\x00\x00\x00\x10\x04\xd2\x16\x2e")

func (s *lossy) around(call, key string, do func() error) {
	s.mu.Lock()
	var l *loss
	if i := slices.IndexFunc(s.next, func(l *loss) bool { return l.call == call && (l.key == "" || l.key == key) }); i >= 0 {
		l = s.next[i]
		s.next = slices.Delete(s.next, i, i+1)
	}
	s.mu.Unlock()
	type catch struct {
		caught *atomic.Bool
		cut    <-chan struct{}
	}
	var catches []catch
	if l != nil {
		for _, p := range s.proxies {
			n, caught := l.nth, new(atomic.Bool)
			cut := l.cut(p, func(request []byte) bool {
				if bytes.HasPrefix(request, cancelRequest) {
					return false
				}
				if n--; n == 0 {
					l.caught.Store(true)
					caught.Store(true)
				}
				return n == 0
			})
			catches = append(catches, catch{caught, cut})
		}
	}
	err := do()
	if l != nil {
		for _, p := range s.proxies {
			p.Heal() // a call with fewer requests
		}
		// Redlock does not wait for all servers. What they lose is of this call.
		for _, one := range catches {
			if one.caught.Load() {
				<-one.cut
			}
		}
		close(l.over)
	}
	s.mu.Lock()
	if err == nil {
		s.made[call]++
	}
	s.mu.Unlock()
}

// answered is how many such calls were answered.
func (s *lossy) answered(call string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.made[call]
}

// wake has all claims that hold or wait renewed now, and not when it is due: hints may
// be spurious.
func (s *lossy) wake() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, f := range s.wakes {
		go f(driver.Hint{})
	}
}

func (s *lossy) Acquire(ctx context.Context, r driver.Request) (g driver.Grant, err error) {
	s.around("acquire", r.Key, func() error { g, err = s.Store.Acquire(ctx, r); return err })
	return g, err
}

func (s *lossy) Renew(ctx context.Context, claims []driver.Claim, ttl time.Duration) (all []driver.Renewal) {
	s.around("renew", claims[0].Key, func() error { all = s.Store.Renew(ctx, claims, ttl); return all[0].Err })
	return all
}

func (s *lossy) Release(ctx context.Context, c driver.Claim) (err error) {
	s.around("release", c.Key, func() error { err = s.Store.Release(ctx, c); return err })
	return err
}

func (s *lossy) Inspect(ctx context.Context, key string) (info driver.KeyInfo, err error) {
	s.around("inspect", key, func() error { info, err = s.Inspector.Inspect(ctx, key); return err })
	return info, err
}

func (s *lossy) Watch(c driver.Claim, wake func(driver.Hint)) (stop func()) {
	s.mu.Lock()
	s.wakes[c.ID] = wake
	s.mu.Unlock()
	end := s.Watcher.Watch(c, wake)
	return func() {
		s.mu.Lock()
		delete(s.wakes, c.ID)
		s.mu.Unlock()
		end()
	}
}
