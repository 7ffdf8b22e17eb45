package deploy

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

// wires are the connections of a process: the inode of a socket is in the list of its files, and
// in the list of all open sockets of the machine.
func wires(t *testing.T, pid int) (ends map[string]bool) {
	t.Helper()
	files, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", pid))
	if err != nil || len(files) == 0 {
		t.Fatalf("process %d has no files: %v", pid, err)
	}
	own := map[string]bool{}
	for _, f := range files {
		if to, err := os.Readlink(f); err == nil { // else it was closed meanwhile
			own[strings.TrimSuffix(strings.TrimPrefix(to, "socket:["), "]")] = true
		}
	}
	ends = map[string]bool{}
	for _, table := range []string{"tcp", "tcp6"} {
		f, err := os.Open(fmt.Sprintf("/proc/%d/net/%s", pid, table))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		for lines := bufio.NewScanner(f); lines.Scan(); {
			const local, remote, state, inode = 1, 2, 3, 9
			at := strings.Fields(lines.Text())
			if established := "01"; len(at) > inode && at[state] == established && own[at[inode]] {
				_, from, _ := strings.Cut(at[local], ":")
				_, to, _ := strings.Cut(at[remote], ":")
				ends[from+" "+to] = true // ports, which are all of this machine
			}
		}
	}
	return ends
}

// Servers that can be isolated talk to each other only through proxies, also after one of them has
// been restarted.
func TestIsolateLeavesNoWay(t *testing.T) {
	testserver.Long(t)
	for _, kind := range []string{"sentinel", "zookeeper3", "etcd3"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			d := Start(t, kind, 1)
			direct := func() (all []string) {
				ends := make([]map[string]bool, len(d.Servers))
				// A restarted server may be about to connect again.
				if err := await(func() error {
					for i, s := range d.Servers {
						if ends[i] = wires(t, s.Pid()); len(ends[i]) == 0 {
							return fmt.Errorf("server %d has no connection", i)
						}
					}
					return nil
				}); err != nil {
					t.Fatalf("the test is of no use: %v", err)
				}
				for i := range ends {
					for end := range ends[i] {
						from, to, _ := strings.Cut(end, " ")
						for j := range ends {
							if i != j && ends[j][to+" "+from] {
								all = append(all, fmt.Sprintf("from %d to %d", i, j))
							}
						}
					}
				}
				return all
			}
			for server := range d.Servers {
				if all := direct(); len(all) > 0 {
					t.Errorf("before the restart of server %d there are connections past the proxies: %q", server, all)
				}
				d.Servers[server].Kill()
				if err := errors.Join(d.Servers[server].Restart(), await(d.Settled)); err != nil {
					t.Fatal(err)
				}
			}
			if all := direct(); len(all) > 0 {
				t.Errorf("after all there are connections past the proxies: %q", all)
			}
		})
	}
}
