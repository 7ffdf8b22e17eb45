package verify

import (
	"context"
	"errors"
	neturl "net/url"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/lab/verify/served"
	"github.com/batonhq/baton/open"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redisstore/rueidisstore"
	"github.com/batonhq/baton/store/redlock"
)

// servedScheme is the scheme of a store that this program serves to its clients.
const servedScheme = "served://"

func openStore(ctx context.Context, url string) (driver.Store, error) {
	if addr, ok := strings.CutPrefix(url, servedScheme); ok {
		return served.Dial(ctx, addr)
	}
	return open.Store(ctx, url)
}

// GoRedis makes a client of that library for one server. If a program sets it before Main,
// some clients use one under some faults; the others use rueidis.
var GoRedis func(addr string) (wrap func(redisstore.Config) (*redisstore.Store, error), close func() error)

// openOwn opens a store of one Redis, or a Redlock of several, over clients of the caller,
// with other time-outs and connections than the store's own. It opens every other store as
// usual.
func openOwn(ctx context.Context, url string, goRedis bool) (driver.Store, error) {
	scheme, rest, _ := strings.Cut(url, "://")
	hosts, query, _ := strings.Cut(rest, "?")
	if scheme != "redis" && scheme != "redlock" || strings.ContainsAny(hosts, "@/") {
		return openStore(ctx, url)
	}
	own := &owned{}
	var nodes []redlock.Member
	for addr := range strings.SplitSeq(hosts, ",") {
		s, err := own.connect(addr, goRedis)
		if err != nil {
			return nil, errors.Join(err, own.close())
		}
		nodes = append(nodes, s)
	}
	if scheme == "redis" {
		return ownRedis{nodes[0].(*redisstore.Store), own}, nil
	}
	values, err := neturl.ParseQuery(query)
	if err != nil {
		return nil, errors.Join(err, own.close())
	}
	longest, err := time.ParseDuration(values.Get("longest-ttl"))
	if err != nil {
		return nil, errors.Join(err, own.close())
	}
	s, err := redlock.New(nodes, redlock.Config{LongestTTL: longest})
	if err != nil {
		return nil, errors.Join(err, own.close())
	}
	return ownRedlock{s, own}, nil
}

// owned are the clients below a store, which it does not close.
type owned struct{ closes []func() error }

func (o *owned) connect(addr string, goRedis bool) (*redisstore.Store, error) {
	if goRedis && GoRedis != nil {
		wrap, end := GoRedis(addr)
		o.closes = append(o.closes, end)
		s, err := wrap(redisstore.Config{})
		if err == nil {
			o.closes = append(o.closes, s.Close)
		}
		return s, err
	}
	c, err := rueidis.NewClient(rueidis.ClientOption{InitAddress: []string{addr}})
	if err != nil {
		return nil, err
	}
	o.closes = append(o.closes, func() error { c.Close(); return nil })
	s, err := rueidisstore.New(c, redisstore.Config{})
	if err == nil {
		o.closes = append(o.closes, s.Close)
	}
	return s, err
}

// close closes the clients, the last one first.
func (o *owned) close() error {
	var errs []error
	for _, f := range slices.Backward(o.closes) {
		errs = append(errs, f())
	}
	return errors.Join(errs...)
}

type ownRedis struct {
	*redisstore.Store
	own *owned
}

func (s ownRedis) Close() error { return s.own.close() }

type ownRedlock struct {
	*redlock.Store
	own *owned
}

func (s ownRedlock) Close() error { return errors.Join(s.Store.Close(), s.own.close()) }
