package main

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/store/sqlitestore"
)

// A process takes locks whose names are commands. Bash inserts what two of them have in
// common as it is, and would run it at the next press of the tab key.
func TestCompletionRunsNoName(t *testing.T) {
	t.Parallel()
	term := newTerminal(t)
	store, err := sqlitestore.Open(t.Context(), filepath.Join(term.dir, "baton", "locks.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	locks, err := baton.New(store, baton.Config{Owner: "`touch${IFS}owner`"})
	if err != nil {
		t.Fatal(err)
	}
	lock := func(keys ...string) {
		t.Helper()
		for _, key := range keys {
			if _, err := locks.Lock(t.Context(), key); err != nil {
				t.Fatal(err)
			}
		}
	}
	lock("`touch${IFS}key`a", "`touch${IFS}key`b")

	// What the package bash-completion does.
	term.typed(`_init_completion() { words=("${COMP_WORDS[@]}"); cword=$COMP_CWORD; cur=${words[cword]}; prev=${words[cword-1]}; }` + "\n")
	term.typed("source <(baton completion bash); echo ready $((1+1))\n")
	term.shows("ready 2")
	for _, command := range []string{"show", "break", "run", "lock", "watch", "ls"} {
		term.typed("baton " + command + " \t\t\t")
		term.typed("\x15echo " + command + " $((1+1))\n") // the rest of the line is thrown away
		term.shows(command + " 2")
	}
	lock("safe/x=1:a", "safe/x=1:b", "safe/`a", "safe/'b")
	term.typed("baton show sa\t\t\t")
	term.shows("x=1:")
	for _, name := range []string{"key", "owner"} {
		if _, err := os.Stat(term.file(name)); err == nil {
			t.Errorf("the shell ran the %s of a lock", name)
		}
	}
}
