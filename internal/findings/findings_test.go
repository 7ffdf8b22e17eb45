package findings

import (
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver"
)

func TestSay(t *testing.T) {
	var all Table
	all.Say(false, "a", driver.Note, "", "not so")
	all.Say(true, "b", driver.Slow, "do it", "%d of %d", 1, 2)
	if want := (driver.Finding{Name: "b", Severity: driver.Slow, What: "1 of 2", Mend: "do it"}); !slices.Equal(all, Table{want}) {
		t.Errorf("%+v, want %+v", all, want)
	}
}

func TestMerge(t *testing.T) {
	said := func(texts ...string) (all []driver.Finding) {
		for _, text := range texts {
			all = append(all, driver.Finding{Name: "n", What: text})
		}
		return all
	}
	got := Merge([]string{"a", "b", "c"}, [][]driver.Finding{said("all", "one"), said("two (on b, c)", "all"), said("all", "two (on b, c)")})
	if want := said("all", "one (on a)", "two (on b, c)"); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}

func TestOlder(t *testing.T) {
	for _, c := range []struct {
		version string
		than    []int
		want    bool
	}{
		{"10.5.9-MariaDB-log", []int{10, 6, 0}, true},
		{"10.6.0-mariadb", []int{10, 6, 0}, false},
		{"8.0.0-dmr", []int{8, 0, 1}, true},
		{"8.0.1", []int{8, 0, 1}, false},
		{"9.1", []int{10, 0}, true},
		{"10.0", []int{9, 1}, false},
		{"7", []int{7, 1}, false},
		{"3.4.14", []int{3, 5, 3}, true},
		{"3.5.0-rc.1", []int{3, 5, 3}, true},
		{"3.5.3", []int{3, 5}, false},
		{"unstable", []int{6, 2}, false},
		{"", []int{6, 2}, false},
	} {
		if got := Older(c.version, c.than...); got != c.want {
			t.Errorf("%q is older than %v: %v", c.version, c.than, got)
		}
	}
}

func TestLocal(t *testing.T) {
	for addrs, want := range map[string]bool{
		"localhost:1 127.0.0.1:1 [::1]:2": true, "/run/redis.sock": true, "127.0.0.1": true, "::1": true, "localhost": true,
		"127.0.0.1:1 etcd:2379": false, "10.0.0.1:3306": false, "db1": false, "": true,
	} {
		if got := Local(strings.Fields(addrs)...); got != want {
			t.Errorf("%q: %v, want %v", addrs, got, want)
		}
	}
}
