package testserver

import (
	"net/http"
	"testing"
	"time"
)

// A server with a stalled disk answers what needs no disk, and writes when the disk
// goes on, or is started again.
func TestStalledDisk(t *testing.T) {
	t.Parallel()
	s := Etcd(Stalling(t))
	put := func(value string) <-chan error {
		done := make(chan error, 1)
		go func() {
			_, err := s.Do("/v3/kv/put", map[string]any{"key": "aw==", "value": value})
			done <- err
		}()
		return done
	}
	if err := <-put("MQ=="); err != nil {
		t.Fatal(err)
	}
	s.StallDisk()
	written := put("Mg==")
	s.AwaitStalled()
	answers(t, s)
	select {
	case err := <-written:
		t.Errorf("something was written to a stalled disk, or refused: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	s.ResumeDisk()
	if err := <-written; err != nil {
		t.Errorf("on a disk that goes on: %v", err)
	}
	s.StallDisk()
	s.Kill()
	s.ResumeDisk()
	s.Restart()
	if err := <-put("Mw=="); err != nil {
		t.Errorf("after a restart: %v", err)
	}
}

// A leader with a stalled disk leads no longer once it has something to write, and
// the others go on.
func TestStalledLeader(t *testing.T) {
	t.Parallel()
	cluster := EtcdThree(Stalling(t))
	leader := cluster.Leader(t)
	leader.StallDisk()
	defer leader.ResumeDisk()
	var others EtcdCluster
	for _, m := range cluster.Members {
		if m != leader {
			others.Members = append(others.Members, m)
		}
	}
	go func() { _, _ = leader.Do("/v3/kv/put", map[string]any{"key": "aw=="}) }() // it fails
	leader.AwaitStalled()
	next := others.Leader(t)
	if _, err := next.Do("/v3/kv/put", map[string]any{"key": "aw=="}); err != nil {
		t.Errorf("the others do not go on: %v", err)
	}
	answers(t, leader)
}

// answers asks for a page that there is not: whatever is answered, the server serves
// its connections. What it knows of its cluster may have to wait for the disk.
func answers(t *testing.T, s *EtcdServer) {
	t.Helper()
	client := http.Client{Timeout: answerTimeout}
	resp, err := client.Get(s.url() + "/nowhere")
	if err != nil {
		t.Errorf("the server with the stalled disk does not answer: %v", err)
		return
	}
	resp.Body.Close()
}
