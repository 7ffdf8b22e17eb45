package fault

import (
	"fmt"
	"strings"
	"testing"

	"github.com/batonhq/baton/lab/verify/check"
	"github.com/batonhq/baton/lab/verify/deploy"
)

// Every kind has a claim for every fault, and all claims are about existing kinds and faults.
func TestEveryCellIsExpected(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for n := 1; n <= 33; n++ {
		known[fmt.Sprintf("f%02d", n)] = true
	}
	for _, f := range All() {
		if !known[f.ID] {
			t.Errorf("%s %s has no line in the table, or is there twice", f.ID, f.Name)
		}
		delete(known, f.ID)
	}
	for id := range known { // faults without code
		for _, k := range deploy.Kinds {
			if WhyLeft(k.Name, id) == "" && mayRun(k.Name, id) {
				t.Errorf("%s on %s is claimed, there is no such fault, and it is not said why", id, k.Name)
			}
		}
	}
	for _, k := range deploy.Kinds {
		for _, f := range All() {
			v, ok := Expect(k.Name, f.ID)
			if !ok {
				t.Errorf("nothing is claimed of %s under %s", k.Name, f.ID)
			}
			for _, s := range []Sign{v.E, v.F, v.L} {
				if s != Holds && s != Breaks && s != Bounded && s != NoSuch {
					t.Errorf("%s under %s: %q is no sign", k.Name, f.ID, s)
				}
			}
		}
	}
	for f, want := range map[string]bool{"f01": true, "f02": false, "f26": false, "f33": true, "f27+f33": true, "f02+f33": false} {
		if Keeps("etcd3", f) != want {
			t.Errorf("etcd3 keeps all leases under %s: %v, want %v", f, !want, want)
		}
	}
	for l := range strings.Lines(strings.TrimSpace(kept)) {
		for i, w := range strings.Fields(l) {
			_, errFault := Find(w)
			_, errKind := deploy.Find(w)
			if i == 0 && errFault != nil || i > 0 && errKind != nil {
				t.Errorf("%q is claimed to keep leases: %v, %v", w, errFault, errKind)
			}
		}
	}
	if v, ok := Expect("redis", "f16"); !ok || v != (Verdict{Holds, Holds, Breaks, Holds}) {
		t.Errorf("redis under f16: %v, want ++-", v)
	}
	for kind, want := range map[string]Sign{"postgres": Breaks, "mariadb": Holds, "sentinel": Breaks} {
		if v, ok := Expect(kind, "f10"); !ok || v.Of(check.Bounded) != want {
			t.Errorf("limits on %s under f10: %v, want %c", kind, v, want)
		}
	}
	for _, f := range frontFaults { // these do not break the store
		for _, k := range deploy.Kinds {
			if v, ok := Expect(k.Name, f.ID); !ok || v != (Verdict{Holds, Holds, Holds, Holds}) {
				t.Errorf("%s under %s: %v, want +++", k.Name, f.ID, v)
			}
		}
	}
	if _, ok := Expect("redis", "f99"); ok {
		t.Error("something is claimed under a fault that does not exist")
	}
	if _, ok := Expect("floppy", "f01"); ok {
		t.Error("something is claimed of a store that does not exist")
	}
}

func mayRun(kind, id string) bool {
	v, _ := Expect(kind, id)
	return v.E != NoSuch
}
