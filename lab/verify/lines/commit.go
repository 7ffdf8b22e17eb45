package lines

import (
	"os/exec"
	"strings"
)

// Commit names the code in the working directory, for lines that say what was measured:
// the commit, and "-dirty" if something was changed since. It is empty where git does
// not know.
func Commit() string {
	name, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
