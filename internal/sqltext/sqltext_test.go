package sqltext

import (
	"slices"
	"testing"
	"testing/fstest"
)

func TestInGo(t *testing.T) {
	source := "package p\n\n// FROM baton_lock is no statement here\nconst a = `SELECT x\n\tFROM baton_lock` + ` WHERE k = 1`\n" +
		"var b, c, d = \"DELETE FROM baton_claim WHERE k=\", \"baton_lock is a table\", `SELECT * FROM baton_take_1(1)`\n"
	all, err := InGo(fstest.MapFS{"a.go": {Data: []byte(source)}, "a_test.go": {Data: []byte("package p\nvar x = `SELECT 1 FROM baton_lock`\n")}})
	want := []Text{{"a.go:4", "SELECT x FROM baton_lock"}, {"a.go:6", "DELETE FROM baton_claim WHERE k="}}
	if err != nil || !slices.Equal(all, want) {
		t.Errorf("%q, %v, want %q", all, err, want)
	}
	if missing := Missing(all, []string{"SELECT x  FROM\nbaton_lock WHERE k = 1"}); !slices.Equal(missing, want[1:]) {
		t.Errorf("missing: %q, want %q", missing, want[1:])
	}
}
