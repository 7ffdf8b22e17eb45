package docs

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/driver/limits"
	"github.com/batonhq/baton/store/etcdstore"
	"github.com/batonhq/baton/store/memstore"
	"github.com/batonhq/baton/store/mysqlstore"
	"github.com/batonhq/baton/store/pgstore"
	"github.com/batonhq/baton/store/redisstore"
	"github.com/batonhq/baton/store/redlock"
	"github.com/batonhq/baton/store/sqlitestore"
	"github.com/batonhq/baton/store/zkstore"
)

// The columns of the table. Traits are constant: no store has to be opened.
var stores = []driver.Locks{
	new(memstore.Store), new(sqlitestore.Store), new(redisstore.Store), new(redlock.Store),
	new(mysqlstore.Store), new(pgstore.Store), new(zkstore.Store), new(etcdstore.Store),
}

// promised returns the cells of a store's column. "–" is for a promise that nothing could break.
func promised(l driver.Locks) []string {
	t := l.Traits()
	word := func(b bool) string { return map[bool]string{true: "yes", false: "**no**"}[b] }
	only := func(applies bool, cell string) string { return map[bool]string{true: cell, false: "–"}[applies] }
	who := "goroutines of one process"
	if t.Machines {
		who = "machines"
	} else if t.Processes {
		who = "processes of one machine"
	}
	died := "yes"
	if t.Sessions {
		died = "**within its session**"
	}
	return []string{
		t.Store, who, "yes",
		only(t.Processes, word(t.Durable)), only(t.Machines, word(t.Consensus)),
		word(t.Fencing), only(t.Machines, word(t.Failover)),
		died, died,
		word(t.Processes && !t.Sessions), only(!t.Sessions, has[driver.Mover](l)), only(t.Processes, word(!t.Sessions)),
		word(!t.Sessions), only(!t.Sessions, has[driver.Mover](l)),
		word(t.FIFO), word(t.Shared), has[driver.Downgrader](l), word(t.Permits), has[driver.Watcher](l),
		has[driver.Inspector](l), has[driver.Renamer](l),
		has[limits.Store](l), has[limits.Overrider](l), has[limits.Lister](l),
		has[driver.Records](l), has[driver.RecordLister](l),
		span(t.MinTTL) + " to " + span(t.MaxTTL),
	}
}

func has[I any](l driver.Locks) string {
	if _, ok := l.(I); !ok {
		return "**no**"
	}
	return "yes"
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

// The table of GUARANTEES.md says of each store what its traits and its methods say.
func TestGuarantees(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../GUARANTEES.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(text), "<!-- traits -->\n")
	table, _, _ = strings.Cut(table, "\n<!-- end of traits -->")
	var rows [][]string
	for line := range strings.Lines(table) {
		if cells := strings.Split(strings.TrimSpace(line), " | "); !strings.HasPrefix(line, "|---") {
			rows = append(rows, cells)
		}
	}
	folders, err := os.ReadDir("../store")
	if err != nil || len(folders) < len(stores) {
		t.Errorf("the table has %d stores, and there are %d: %v", len(stores), len(folders), err)
	}
	for i, s := range stores {
		want := promised(s)
		if len(want) != len(rows) {
			t.Fatalf("the table has %d rows, want %d", len(rows), len(want))
		}
		for j, row := range rows {
			if len(row) != 1+len(stores) || strings.TrimSuffix(row[i+1], " |") != want[j] {
				t.Errorf("%s: %v, want %q", s.Traits().Store, row, want[j])
			}
		}
	}
}
