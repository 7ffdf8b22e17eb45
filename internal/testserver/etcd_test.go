package testserver

import (
	"io"
	"net/http"
	"regexp"
	"strings"
	"testing"
)

// Servers of tests sync no write, for speed; those that are measured are asked to.
func TestEtcdSyncsWhenAskedTo(t *testing.T) {
	t.Parallel()
	text := func(t *testing.T, resp *http.Response, err error) []byte {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %s, %v", resp.Status, b, err)
		}
		return b
	}
	for _, tt := range []struct {
		name  string
		args  []string
		syncs bool
	}{
		{"by itself", nil, false},
		{"when asked to", []string{"--unsafe-no-fsync=false"}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			s := Etcd(t, tt.args...)
			count := func() string {
				t.Helper()
				resp, err := http.Get(s.url() + "/metrics")
				all := text(t, resp, err)
				found := regexp.MustCompile(`(?m)^etcd_disk_wal_fsync_duration_seconds_count (\d+)$`).FindSubmatch(all)
				if found == nil {
					t.Fatal("etcd does not count how often it syncs")
				}
				return string(found[1])
			}
			before := count()
			resp, err := http.Post(s.url()+"/v3/kv/put", "application/json", strings.NewReader(`{"key": "aw==", "value": "dg=="}`))
			text(t, resp, err)
			if after := count(); (after != before) != tt.syncs {
				t.Errorf("it had synced %s times before a write, and %s after it", before, after)
			}
		})
	}
}
