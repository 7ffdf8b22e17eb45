package deploy

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// A builder makes one Deployment. If something does not start, its methods end by a panic that the
// site turns into an error.
type builder struct {
	*testserver.Site
	*Deployment
	Options
}

// process is the common part of testserver's servers.
type process interface {
	Pid() int
	Kill()
	Stop()
	Cont()
	Restart()
	Machine() *testserver.Machine
}

// node is a Server.
type node struct {
	process
	site *testserver.Site
}

func (n *node) Stop() error    { return n.site.Try(n.process.Stop) }
func (n *node) Cont() error    { return n.site.Try(n.process.Cont) }
func (n *node) Restart() error { return n.site.Try(n.process.Restart) }

// serve makes servers, which listen at addrs, the servers of the deployment. url is for a client
// that finds them, or its proxies for them, at the given addresses.
func (b *builder) serve(servers []process, addrs []string, url func(addrs []string) string) {
	for _, s := range servers {
		b.Servers = append(b.Servers, &node{s, b.Site})
	}
	b.Direct = url(addrs)
	proxies := make([][]*faultproxy.Proxy, b.Options.Clients)
	for i := range proxies {
		for _, a := range addrs {
			proxies[i] = append(proxies[i], faultproxy.New(b.Site, a))
		}
		// Where the order of the servers matters, it is by address.
		slices.SortFunc(proxies[i], func(p, q *faultproxy.Proxy) int { return cmp.Compare(p.Addr, q.Addr) })
		for j, p := range proxies[i] {
			p.Retarget(addrs[j])
		}
	}
	b.Proxies = func(client int) []*faultproxy.Proxy { return proxies[client] }
	b.URL = func(client int) string {
		var at []string
		for _, p := range proxies[client] {
			at = append(at, p.Addr)
		}
		return url(at)
	}
}

// machine is the machine of a server.
func (b *builder) machine(server int) *testserver.Machine {
	return b.Servers[server].(*node).Machine()
}

// clocks makes the clocks of all servers adjustable, if this machine can.
func (b *builder) clocks() {
	if !b.machine(0).HasClock() {
		return
	}
	var mu sync.Mutex
	offsets := make([]time.Duration, len(b.Servers))
	b.Shift = func(server int, by time.Duration) error {
		mu.Lock()
		defer mu.Unlock()
		offsets[server] += by
		return b.machine(server).SetClock(offsets[server])
	}
}

// disks makes the disks of all servers fillable, if this machine can.
func (b *builder) disks() {
	if b.machine(0).HasDisk() {
		b.FillDisk = func(server int) (func() error, error) { return b.machine(server).FillDisk() }
	}
}

// stalls makes the disks of all servers stallable, if they were started with support for that.
func (b *builder) stalls() {
	if !b.Site.Stalls {
		return
	}
	type stalling interface {
		StallDisk()
		ResumeDisk()
	}
	b.Stall = func(server int) (resume func() error, err error) {
		s := b.Servers[server].(*node).process.(stalling)
		return func() error { return b.Try(s.ResumeDisk) }, b.Try(s.StallDisk)
	}
}

// snapshots lets the disks of all servers be copied, while the servers are down.
func (b *builder) snapshots() {
	root := b.FreshDir().Dir()
	kept := func(server int) string { return filepath.Join(root, fmt.Sprint(server)) }
	b.Snapshot = func() (restore func() error, err error) {
		err = b.whileDown(func(i int) error { return copyDir(kept(i), b.machine(i).Dir()) })
		return func() error {
			return b.whileDown(func(i int) error { return copyDir(b.machine(i).Dir(), kept(i)) })
		}, err
	}
}

// whileDown kills all servers, calls f for each, and starts them again.
func (b *builder) whileDown(f func(server int) error) error {
	for _, s := range b.Servers {
		s.Kill()
	}
	var errs []error
	for i := range b.Servers {
		errs = append(errs, f(i))
	}
	return errors.Join(append(errs, RestartAll(b.Servers), await(b.Settled))...)
}

// RestartAll restarts servers at the same time, because a server may be unable to serve without
// the others.
func RestartAll(servers []Server) error {
	errs := make([]error, len(servers))
	var wg sync.WaitGroup
	for i, s := range servers {
		wg.Go(func() { errs[i] = s.Restart() })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// copyDir makes the content of a directory that of from.
func copyDir(to, from string) error {
	if err := os.MkdirAll(to, 0o700); err != nil {
		return err
	}
	if err := emptyDir(to); err != nil { // the directory may be a mount point
		return err
	}
	// cp -a keeps owners, too.
	if out, err := exec.Command("cp", "-a", from+"/.", to).CombinedOutput(); err != nil {
		return fmt.Errorf("copy %s: %w: %s", from, err, strings.TrimSpace(string(out)))
	}
	return nil
}

func emptyDir(dir string) error {
	old, err := os.ReadDir(dir)
	for _, f := range old {
		err = errors.Join(err, os.RemoveAll(filepath.Join(dir, f.Name())))
	}
	return err
}
