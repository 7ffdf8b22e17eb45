package guarantees

import (
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/translated"
	"github.com/batonhq/baton/internal/verify"
	"github.com/batonhq/baton/internal/verify/check"
	"github.com/batonhq/baton/internal/verify/results"
)

var update = flag.Bool("update", false, "write GUARANTEES.md")

const file = "../../GUARANTEES.md"

func TestPageIsFresh(t *testing.T) {
	known, err := results.Load("../../docs/verification.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	want, err := page(known)
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		if err := translated.Write("../..", "GUARANTEES.md"); err != nil {
			t.Fatal(err)
		}
	}
	got, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("GUARANTEES.md is stale: go generate ./internal/guarantees")
	}
}

// What broke and must not is told, and so is what may break and did.
func TestSeenSaysWhatBroke(t *testing.T) {
	kept := func(e, l bool) map[check.Promise]bool {
		return map[check.Promise]bool{check.Exclusive: e, check.Fenced: true, check.Lively: l}
	}
	all := make(results.Sums)
	all.Add([]results.Result{
		{Kind: "redis", Fault: "f01", Seed: 1, Verdict: verify.Held, Kept: kept(true, true), Counts: results.Counts{Granted: 7, Writes: 3}},
		{Kind: "redis", Fault: "f01", Seed: 2, Verdict: verify.Broken, Kept: kept(true, false), Counts: results.Counts{Granted: 8, Writes: 4}},
		{Kind: "redis", Fault: "f01", Seed: 3, Verdict: verify.Invalid, Kept: kept(false, false), Counts: results.Counts{Granted: 100, Writes: 100}},
		{Kind: "redis", Fault: "f15", Seed: 1, Verdict: verify.Excused, Kept: kept(false, true), Counts: results.Counts{Granted: 1, Writes: 1}},
		{Kind: "redis", Fault: "f15", Seed: 2, Verdict: verify.Excused, Kept: kept(false, true), Counts: results.Counts{Granted: 1, Writes: 1}},
	}...)
	text := seen(all)
	for _, want := range []string{
		"| redis | 4 | 17 | 9 | held in 2 | held in 4 | **broke in 1 of 4** | clock-forward |",
		"| etcd | 0 | 0 | 0 | – | – | – | – |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
}

// Every folder of store/ is in the table, and has a section.
func TestAllStoresAreThere(t *testing.T) {
	folders, err := os.ReadDir("../../store")
	if err != nil {
		t.Fatal(err)
	}
	listed := make(map[string]bool)
	for _, s := range stores {
		listed[filepath.Base(reflect.TypeOf(s).Elem().PkgPath())] = true
		if name := s.Traits().Store; !strings.Contains(text, "\n## "+name+"\n") {
			t.Errorf("the page has no section %q", name)
		}
	}
	for _, f := range folders {
		if f.IsDir() && !listed[f.Name()] {
			t.Errorf("store/%s is not in the table", f.Name())
		}
	}
}

// A trait that the table does not show is a promise that nobody hears of.
func TestAllTraitsAreShown(t *testing.T) {
	shown := func(traits driver.Traits) (cells []string) {
		for _, p := range promises {
			cells = append(cells, p.answer(only{traits: traits}))
		}
		return cells
	}
	all := driver.Traits{Processes: true, Machines: true}
	for field := range reflect.TypeFor[driver.Traits]().Fields() {
		if field.Type.Kind() != reflect.Bool {
			continue
		}
		changed := all
		if field.Name == "Processes" { // shown only of what machines do not share
			changed.Machines = false
		}
		before := changed
		v := reflect.ValueOf(&changed).Elem().FieldByIndex(field.Index)
		v.SetBool(!v.Bool())
		if reflect.DeepEqual(shown(before), shown(changed)) {
			t.Errorf("the table does not show Traits.%s", field.Name)
		}
	}
}

// only is a store that has nothing but traits.
type only struct {
	driver.Locks // nil: nothing else is asked
	traits       driver.Traits
}

func (o only) Traits() driver.Traits { return o.traits }
