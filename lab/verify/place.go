package verify

import (
	"net"
	"strings"

	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
	"github.com/batonhq/baton/lab/verify/deploy"
)

// A place is the verified store, as its clients see it: each client has its own way to the
// store, so each way can be broken alone.
type place struct {
	direct  string // the URL for the conductor; "" if no other process sees the locks
	url     func(client int) string
	proxies func(client int) []*faultproxy.Proxy
	servers *deploy.Deployment // nil if Run did not start the servers
	close   func()
}

// settle makes a place of a kind's servers, which it starts.
func settle(kind string, o deploy.Options) (*place, error) {
	d, err := deploy.Open(kind, o)
	if err != nil {
		return nil, err
	}
	return &place{direct: d.Direct, url: d.URL, proxies: d.Proxies, servers: d, close: d.Close}, nil
}

// visit makes a place of a given store. If its URL has one address, the clients reach it
// through proxies.
func visit(url string, clients int) (*place, error) {
	p := &place{
		direct:  url,
		url:     func(int) string { return url },
		proxies: func(int) []*faultproxy.Proxy { return nil },
		close:   func() {},
	}
	before, address, after, ok := address(url)
	if !ok {
		return p, nil
	}
	site := new(testserver.Site)
	p.close = site.Close
	all := make([][]*faultproxy.Proxy, clients)
	err := site.Try(func() {
		for n := range all {
			all[n] = []*faultproxy.Proxy{faultproxy.New(site, address)}
		}
	})
	if err != nil {
		site.Close()
		return nil, err
	}
	p.url = func(n int) string { return before + all[n][0].Addr + after }
	p.proxies = func(n int) []*faultproxy.Proxy { return all[n] }
	return p, nil
}

// proxied are the schemes whose address can be replaced, with their default port.
var proxied = map[string]string{
	"redis": "6379", "mysql": "3306", "mariadb": "3306", "postgres": "5432", "postgresql": "5432",
	"served": "0", // which always has a port
}

// address returns the only address of a URL. ok is false if there is none, or several, or if
// the server must be called by its name.
func address(url string) (before, address, after string, ok bool) {
	scheme, rest, found := strings.Cut(url, "://")
	port, known := proxied[strings.ToLower(scheme)]
	if !found || !known {
		return "", "", "", false
	}
	end := strings.IndexAny(rest, "/?")
	if end < 0 {
		end = len(rest)
	}
	authority, after := rest[:end], rest[end:]
	for _, word := range []string{"tls", "ca=", "cert=", "server-name=", "insecure", "sslmode=verify", "host="} {
		if strings.Contains(after, word) {
			return "", "", "", false
		}
	}
	at := strings.LastIndexByte(authority, '@') + 1
	before, address = scheme+"://"+authority[:at], authority[at:]
	if address == "" || strings.Contains(address, ",") {
		return "", "", "", false
	}
	if _, _, err := net.SplitHostPort(address); err != nil {
		address = net.JoinHostPort(strings.Trim(address, "[]"), port)
	}
	return before, address, after, true
}
