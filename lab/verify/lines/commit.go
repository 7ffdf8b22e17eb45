package lines

import (
	"os/exec"
	"strings"
)

// Commit names the code in the working directory, for records of measurements: the commit, and "-dirty"
// after it if a file has changed since. It is empty if git does not know.
func Commit() string {
	name, err := exec.Command("git", "describe", "--always", "--dirty", "--abbrev=7", "--exclude=*").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(name))
}
