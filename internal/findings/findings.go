// Package findings is the table of what a store's Examine can find, and what the rows of
// several stores have in common.
package findings

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/batonhq/baton/driver"
)

// A Table is what was found so far.
type Table []driver.Finding

// Say is one row: the finding, if it is true. what has a verb for each of args. It is a
// sentence without a capital and a full stop, which begins with what was found and ends
// with what that does to a lock.
func (t *Table) Say(found bool, name string, severity driver.Severity, mend, what string, args ...any) {
	if found {
		*t = append(*t, driver.Finding{Name: name, Severity: severity, What: fmt.Sprintf(what, args...), Mend: mend})
	}
}

// Merge is what several servers have. A finding that several share is there once, and
// names these servers unless all have it. found has the findings of each of them.
func Merge(servers []string, found [][]driver.Finding) (all []driver.Finding) {
	at := map[driver.Finding][]string{}
	for i, some := range found {
		for _, f := range some {
			if at[f] == nil {
				all = append(all, f)
			}
			at[f] = append(at[f], servers[i])
		}
	}
	for i, f := range all {
		if names := at[f]; len(names) < len(servers) {
			all[i] = On(f, names...)
		}
	}
	return all
}

// On says which servers a finding is about, unless it does.
func On(f driver.Finding, servers ...string) driver.Finding {
	if on := " (on " + strings.Join(servers, ", ") + ")"; !strings.HasSuffix(f.What, on) {
		f.What += on
	}
	return f
}

// Older reports whether a version that begins with numbers, such as "10.6.4-MariaDB", is
// older than another one. It is false for a version that does not.
func Older(version string, than ...int) bool {
	for i, part := range strings.SplitN(version, ".", len(than)) {
		if end := strings.IndexFunc(part, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			part = part[:end]
		}
		if n, err := strconv.Atoi(part); err != nil || n != than[i] {
			return err == nil && n < than[i]
		}
	}
	return false
}

// Local reports whether all addresses, with ports or without, are of this machine.
func Local(addrs ...string) bool {
	return !slices.ContainsFunc(addrs, func(addr string) bool {
		host, _, err := net.SplitHostPort(addr)
		if err != nil {
			host = addr
		}
		ip := net.ParseIP(host)
		return !strings.HasPrefix(addr, "/") && host != "localhost" && (ip == nil || !ip.IsLoopback())
	})
}
