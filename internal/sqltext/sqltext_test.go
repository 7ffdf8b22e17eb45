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

func TestUnmeant(t *testing.T) {
	exceptions := map[string]string{"FROM a": "small", "FROM b": "small", "WHERE x": "rare"}
	unmeant, unused := Unmeant([]string{"SELECT 1 FROM a WHERE x", "SELECT 1 FROM c", "SELECT 2 FROM a"}, exceptions)
	if want := []string{"SELECT 1 FROM c"}; !slices.Equal(unmeant, want) {
		t.Errorf("unmeant: %q, want %q", unmeant, want)
	}
	if want := []string{"FROM b"}; !slices.Equal(unused, want) {
		t.Errorf("unused: %q, want %q", unused, want)
	}
}
