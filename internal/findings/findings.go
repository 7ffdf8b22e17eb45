// Package findings is the table of a store's Examine, with the rows that several stores
// share.
package findings

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/batonhq/baton/driver"
)

// A Table is the findings so far.
type Table []driver.Finding

// Say adds the finding if found is true. what is a sentence without a capital and a full
// stop, with a verb for each of args: it begins with what was found, and ends with the
// effect on a lock.
func (t *Table) Say(found bool, name string, severity driver.Severity, mend, what string, args ...any) {
	if found {
		*t = append(*t, driver.Finding{Name: name, Severity: severity, What: fmt.Sprintf(what, args...), Mend: mend})
	}
}

// Merge joins the findings of several servers. A finding that several share occurs once,
// and names these servers unless all have it.
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

// On adds the servers to a finding, unless it names them already.
func On(f driver.Finding, servers ...string) driver.Finding {
	if on := " (on " + strings.Join(servers, ", ") + ")"; !strings.HasSuffix(f.What, on) {
		f.What += on
	}
	return f
}

// Older reports whether a version that begins with numbers, such as "10.6.4-MariaDB",
// precedes another. It is false for any other version.
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

// Local reports whether all addresses, with or without ports, belong to this machine.
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
