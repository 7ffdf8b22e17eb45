//go:build unix

package main

import (
	"net/http"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/testserver"
)

// Two servers count together; each user has three requests.
func TestAPI(t *testing.T) {
	t.Parallel()
	program := filepath.Join(t.TempDir(), "api")
	if out, err := exec.CommandContext(t.Context(), "go", "build", "-o", program, ".").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	dir := t.TempDir()
	get := func(addr, user string) *http.Response {
		t.Helper()
		for began := time.Now(); ; <-time.After(10 * time.Millisecond) { // until it listens
			r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+addr+"/hello", nil)
			if err != nil {
				t.Fatal(err)
			}
			r.SetBasicAuth(user, "")
			answer, err := http.DefaultClient.Do(r)
			if err == nil {
				answer.Body.Close()
				return answer
			}
			if time.Since(began) > 30*time.Second {
				t.Fatal(err)
			}
		}
	}
	var addrs []string
	for range 2 {
		addr := testserver.FreeAddr(t)
		cmd := exec.Command(program, addr)
		cmd.Dir = dir
		if err := testserver.Start(cmd); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		addrs = append(addrs, addr)
	}
	for i, want := range []int{200, 200, 200, 429, 429} {
		answer := get(addrs[i%2], "alice")
		if answer.StatusCode != want || answer.Header.Get("RateLimit-Policy") == "" || (want == 429) != (answer.Header.Get("Retry-After") != "") {
			t.Errorf("request %d: %s, %v", i+1, answer.Status, answer.Header)
		}
	}
	if answer := get(addrs[0], "bob"); answer.StatusCode != http.StatusOK {
		t.Errorf("another user: %s", answer.Status)
	}
}
