package verify

import (
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/batonhq/baton/clients"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/fault"
	"github.com/batonhq/baton/lab/verify/history"
	"github.com/batonhq/baton/lab/verify/workers"
)

// The ways in which a client reaches the store.
const (
	WayLibrary = "library" // a program in Go
	WayAgent   = "agent"   // programs in Python and PHP, by the agent of one of two hosts
	WayHTTP    = "http"    // programs in Python, by HTTP to one of two servers
)

// Ways are all ways.
var Ways = []string{WayLibrary, WayAgent, WayHTTP}

// NotInstalledError names the missing program that the clients of a way need.
type NotInstalledError struct{ Program, Package string }

func (e *NotInstalledError) Error() string {
	return fmt.Sprintf("%s is not installed: install the package %s", e.Program, e.Package)
}

// hosts is the number of agents, and of servers.
const hosts = 2

// A program is the program of a client.
type program struct {
	way  string
	php  bool
	host int // the host of its agent, or the server to use first
}

// programOf returns the program of a seat: ways, hosts and languages take turns.
func (r *runner) programOf(seat int) program {
	if len(r.cfg.Ways) == 0 {
		return program{way: WayLibrary}
	}
	way, nth := r.cfg.Ways[seat%len(r.cfg.Ways)], seat/len(r.cfg.Ways)
	return program{way: way, php: way == WayAgent && (nth+nth/hosts)%2 == 1, host: nth % hosts}
}

// fronted reports whether some clients use an agent or a server.
func (r *runner) fronted() bool {
	return slices.Contains(r.cfg.Ways, WayAgent) || slices.Contains(r.cfg.Ways, WayHTTP)
}

// positions is how many processes can be in a store's queue: the clients, agents and servers.
func (r *runner) positions() int {
	if r.fronted() {
		return r.cfg.Clients + 2*hosts
	}
	return r.cfg.Clients
}

// install finds the interpreters, and writes the programs to the private folder.
func (r *runner) install() error {
	if !r.fronted() {
		return nil
	}
	wanted := []NotInstalledError{{"python3", "python3"}}
	for seat := range r.cfg.Clients {
		if r.programOf(seat).php {
			wanted = append(wanted, NotInstalledError{"php", "php-cli"})
			break
		}
	}
	for _, w := range wanted {
		if _, err := exec.LookPath(w.Program); err != nil {
			return &w
		}
	}
	for name, from := range map[string]fs.FS{"worker.py": workers.Files, "worker.php": workers.Files, "python/baton/__init__.py": clients.Files, "python/baton/common.py": clients.Files, "php/baton.php": clients.Files} {
		text, err := fs.ReadFile(from, name)
		if err != nil {
			return err
		}
		file := r.path(strings.TrimPrefix(strings.TrimPrefix(name, "python/"), "php/"))
		if err := os.MkdirAll(filepath.Dir(file), 0o700); err != nil {
			return err
		}
		if err := os.WriteFile(file, text, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// path is a file in the private folder of the run.
func (r *runner) path(name string) string { return filepath.Join(r.dir, name) }

// command makes the command that runs the program of a seat.
func (p *process) command() (*exec.Cmd, error) {
	switch is := p.trial.programOf(p.seat); {
	case is.way == WayLibrary:
		return again(roleClient)
	case is.php:
		return exec.Command("php", p.trial.runner.path("worker.php"), p.trial.runner.path("baton.php")), nil
	default:
		return exec.Command("python3", "-B", p.trial.runner.path("worker.py")), nil
	}
}

// wires are the connections of a seat that can be cut: the client's own, or those between its
// front and the store.
func (t *trial) wires(seat int) []*faultproxy.Proxy {
	switch is := t.programOf(seat); is.way {
	case WayAgent:
		return t.place.proxies(t.cfg.Clients + is.host)
	case WayHTTP:
		return slices.Concat(t.doors[seat], t.place.proxies(t.cfg.Clients+hosts+is.host))
	}
	return t.place.proxies(seat)
}

// openFronts starts two agents and two servers with one secret. Each client reaches the
// servers through its own proxies.
func (t *trial) openFronts() error {
	t.doors = make(map[int][]*faultproxy.Proxy)
	if !t.fronted() {
		return nil
	}
	secret := make([]byte, 0, 32)
	for len(secret) < cap(secret) {
		secret = append(secret, byte(t.rng.Uint32()))
	}
	for n := range 2 * hosts {
		way := []string{WayAgent, WayHTTP}[n/hosts]
		if !slices.Contains(t.cfg.Ways, way) {
			continue
		}
		f := &front{trial: t, orders: frontOrders{Way: way, URL: t.place.url(t.cfg.Clients + n), TTL: t.cfg.TTL, Defect: t.cfg.defect}}
		if f.name = fmt.Sprintf("%s %d", map[string]string{WayAgent: "agent", WayHTTP: "server"}[way], n%hosts+1); way == WayAgent {
			f.orders.Listen = t.agentSocket(n)
		} else {
			f.orders.Listen, f.orders.Secret = "127.0.0.1:0", secret
		}
		t.fronts = append(t.fronts, f)
		if err := f.start(); err != nil {
			return err
		}
	}
	servers := t.frontsOf(WayHTTP)
	for seat := range t.seats {
		if t.programOf(seat).way != WayHTTP {
			continue
		}
		site := new(testserver.Site)
		t.cleanup(site.Close)
		if err := site.Try(func() {
			for _, s := range servers {
				t.doors[seat] = append(t.doors[seat], faultproxy.New(site, s.address()))
			}
		}); err != nil {
			return err
		}
	}
	return nil
}

func (t *trial) agentSocket(host int) string {
	return strings.TrimSuffix(t.socket, "register") + fmt.Sprintf("agent%d", host)
}

func (t *trial) frontsOf(way string) (all []*front) {
	for _, f := range t.fronts {
		if f.orders.Way == way {
			all = append(all, f)
		}
	}
	return all
}

// retarget makes the proxies lead to a restarted server's new port.
func (t *trial) retarget(f *front) {
	if n := slices.Index(t.frontsOf(WayHTTP), f); n >= 0 {
		for _, doors := range t.doors {
			doors[n].Retarget(f.address())
		}
	}
}

// closeFronts ends agents and servers by a signal, and kills those that do not end.
func (t *trial) closeFronts() (found []check.Violation) {
	from := history.Now()
	var late []string
	for _, f := range t.fronts {
		if !f.close() {
			late = append(late, f.name)
		}
	}
	return leak("fronts", from, late, "it was told to end, and had not ended after %v")
}

var _ fault.Process = (*front)(nil)
