package main

import (
	"net"
	"syscall"
	"testing"
	"time"
)

// A server that is stopped says so to those who ask for readiness, and answers calls, before
// it closes its port. A second signal ends that at once, and nobody waits for it who has not
// asked.
func TestServeReadinessBeforeItCloses(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		flags        []string
		asks, drains bool
		again        bool // a second signal
		least, most  time.Duration
	}{
		"asked":             {nil, true, true, false, 4 * time.Second, patience},
		"not asked":         {nil, false, false, false, 0, 4 * time.Second},
		"not asked, a flag": {[]string{"--drain", "2s"}, false, true, false, 2 * time.Second, patience},
		"two signals":       {[]string{"--drain", "10m"}, true, true, true, 0, patience},
		"0":                 {[]string{"--drain", "0"}, true, false, false, 0, 4 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startServe(t, t.TempDir(), c.flags...)
			get := func(path string) (status int, closes bool) {
				t.Helper()
				res, err := s.http.Get(s.url + path)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				return res.StatusCode, res.Close
			}
			if c.asks {
				if status, closes := get("/readyz"); status != 200 || closes {
					t.Fatalf("/readyz: %d, and the connection closes: %v", status, closes)
				}
			}
			signal := func() {
				t.Helper()
				if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Fatal(err)
				}
			}
			began := time.Now()
			signal()
			if c.drains {
				s.errs.await(t, "/readyz says so")
				if status, closes := get("/readyz"); status != 503 || !closes {
					t.Errorf("/readyz: %d, and the connection closes: %v", status, closes)
				}
				if status, _ := get("/healthz"); status != 200 {
					t.Errorf("/healthz: %d", status)
				}
				s.held("", `{"key":"k"}`)
				if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil { // which ends no drain
					t.Error(err)
				}
			}
			if c.again {
				signal()
			}
			s.errs.await(t, "no more calls")
			if err := s.cmd.Wait(); err != nil {
				t.Error(err)
			}
			if took := time.Since(began); took < c.least || took > c.most {
				t.Errorf("it took %v to end, want %v to %v", took, c.least, c.most)
			}
			if conn, err := net.Dial("tcp", s.addr); err == nil {
				conn.Close()
				t.Error("the port is open")
			}
		})
	}
}
