package roles_test

import (
	"os"
	"testing"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/roles"
)

// The file that docs/security.md shows is one, and its callers may do what it says.
func TestPage(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/security.md")
	if err != nil {
		t.Fatal(err)
	}
	file := pagecode.Blocks(string(page), "")
	if len(file) != 1 {
		t.Fatalf("docs/security.md shows %d files of roles", len(file))
	}
	table, warnings, err := roles.Parse([]byte(file[0]))
	if err != nil || len(warnings) > 0 {
		t.Fatal(err, warnings)
	}
	team, err := table.ByToken("a") // of which it has the hash
	if err != nil {
		t.Fatal(err)
	}
	for key, may := range map[string]bool{"a/x": true, "a/secret/x": false, "b/x": false} {
		if err := team.May(roles.Lock, key); (err == nil) != may {
			t.Errorf("team-a and the lock %s: %v", key, err)
		}
	}
	user, err := table.ByUID(1001)
	if err != nil || user.May(roles.Once, "app/x") != nil || user.May(roles.Break, "app/x") == nil {
		t.Errorf("the user 1001: %v, %v", user, err)
	}
}
