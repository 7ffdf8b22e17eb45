// Package guarantees writes GUARANTEES.md, the table of what each store
// promises, from the traits of the stores and the results of the verification. A
// test fails when the page is stale; "go generate" writes it anew.
package guarantees

//go:generate go test -run ^TestPageIsFresh$ -update .

import (
	_ "embed"
	"fmt"
	"strings"
	"text/template"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/internal/verify/results"
	"github.com/batonhq/baton/store/etcdstore"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/mysqlstore"
	"github.com/batonhq/baton/store/pgstore"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redlock"
	"github.com/batonhq/baton/store/sqlitestore"
	"github.com/batonhq/baton/store/zkstore"
)

// stores lists all there are, in the order of the columns. Traits are
// constant, so that none of them needs to be opened.
var stores = []driver.Locks{
	new(memstore.Store),
	new(sqlitestore.Store),
	new(redisstore.Store),
	new(redlock.Store),
	new(mysqlstore.Store),
	new(pgstore.Store),
	new(zkstore.Store),
	new(etcdstore.Store),
}

// promise is one row of the table.
type promise struct {
	name   string
	answer func(driver.Locks) string
}

const (
	yes  = "yes"
	no   = "**no**"
	none = "–" // there is nothing that could break the promise
)

var promises = []promise{
	{"Who can share locks", func(l driver.Locks) string {
		switch t := l.Traits(); {
		case t.Machines:
			return "machines"
		case t.Processes:
			return "processes of one machine"
		default:
			return "goroutines of one process"
		}
	}},
	{"Exclusive belief", always},
	{"… through a crash of the server", func(l driver.Locks) string {
		if !l.Traits().Processes {
			return none // the holders end with it
		}
		return word(l.Traits().Durable)
	}},
	{"… through the loss of a primary", whereReplicated(func(t driver.Traits) bool { return t.Consensus })},
	{"Tokens rise through release, expiry, deletion, restart", trait(func(t driver.Traits) bool { return t.Fencing })},
	{"… through the loss of a primary", whereReplicated(func(t driver.Traits) bool { return t.Failover })},
	{"A crashed holder's lock is free within its TTL", unlessSessions},
	{"A crashed waiter costs at most 3 s", unlessSessions},
	{"A lease can be handed to another process", trait(func(t driver.Traits) bool { return t.Processes && !t.Sessions })},
	{"… and no other process can take it up with the same handle", func(l driver.Locks) string {
		if l.Traits().Sessions {
			return none
		}
		return ability[driver.Mover](l)
	}},
	{"A request for a lock that is repeated from another process finds its grant, or its position", func(l driver.Locks) string {
		if !l.Traits().Processes {
			return none
		}
		return word(!l.Traits().Sessions)
	}},
	{"A lock stays taken after its `Unlock` (`MinHold`)", trait(func(t driver.Traits) bool { return !t.Sessions })},
	{"… also if the store does late what the holder had asked for", func(l driver.Locks) string {
		if l.Traits().Sessions {
			return none
		}
		return ability[driver.Mover](l)
	}},
	{"First come, first served across processes", trait(func(t driver.Traits) bool { return t.FIFO })},
	{"Read locks", trait(func(t driver.Traits) bool { return t.Shared })},
	{"… downgrade from a write lock without a gap", ability[driver.Downgrader]},
	{"Permits (n of N)", trait(func(t driver.Traits) bool { return t.Permits })},
	{"The next waiter is woken, not polling", ability[driver.Watcher]},
	{"Holders and queue can be shown, locks broken", ability[driver.Inspector]},
	{"The owner that is shown can change while the lock is held", ability[driver.Renamer]},
	{"Rate limits", ability[limits.Store]},
	{"… of one key are overridden for a while", ability[limits.Overrider]},
	{"… and a list of what is used of them", ability[limits.Lister]},
	{"Records of operations that happen once", ability[driver.Records]},
	{"… and a list of them", ability[driver.RecordLister]},
	{"Shortest and longest TTL", func(l driver.Locks) string {
		t := l.Traits()
		return span(t.MinTTL) + " to " + span(t.MaxTTL)
	}},
}

// always is what the contract asks of every store (package drivertest).
func always(driver.Locks) string { return yes }

// unlessSessions is for promises about processes that died.
func unlessSessions(l driver.Locks) string {
	if l.Traits().Sessions {
		return "**within its session**"
	}
	return yes
}

func word(b bool) string {
	if b {
		return yes
	}
	return no
}

func trait(of func(driver.Traits) bool) func(driver.Locks) string {
	return func(l driver.Locks) string { return word(of(l.Traits())) }
}

// whereReplicated is for promises about servers that stand in for each other.
func whereReplicated(of func(driver.Traits) bool) func(driver.Locks) string {
	return func(l driver.Locks) string {
		if !l.Traits().Machines {
			return none
		}
		return word(of(l.Traits()))
	}
}

func ability[I any](l driver.Locks) string {
	_, ok := l.(I)
	return word(ok)
}

func span(d time.Duration) string {
	switch days := d / (24 * time.Hour); {
	case days == 0 || d%(24*time.Hour) != 0:
		return d.String()
	case days == 1:
		return "1 day"
	default:
		return fmt.Sprintf("%d days", days)
	}
}

//go:embed guarantees.md.tmpl
var text string

// page returns the whole of GUARANTEES.md.
func page(all results.Sums) (string, error) {
	t, err := template.New("guarantees").Parse(text)
	if err != nil {
		return "", err
	}
	var b strings.Builder
	err = t.Execute(&b, map[string]string{"Table": table(), "Seen": seen(all)})
	return b.String(), err
}

func table() string {
	var b strings.Builder
	row := func(first string, cell func(driver.Locks) string) {
		b.WriteString("| " + first + " |")
		for _, s := range stores {
			b.WriteString(" " + cell(s) + " |")
		}
		b.WriteByte('\n')
	}
	row("", func(l driver.Locks) string { return l.Traits().Store })
	b.WriteString("|---|" + strings.Repeat("---|", len(stores)) + "\n")
	for _, p := range promises {
		row(p.name, p.answer)
	}
	return strings.TrimSuffix(b.String(), "\n")
}
