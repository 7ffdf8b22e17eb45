package agent

import (
	"io"
	"net"
	"testing"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/once"
	"github.com/batonhq/baton/store/memstore"
)

// FuzzSession: whatever a client sends, its session ends when it has gone, and nothing is
// left of it.
func FuzzSession(f *testing.F) {
	for _, seed := range []string{
		`{"id":1,"do":"lock","key":"k"}` + "\n" + `{"id":2,"do":"check","lock":1}` + "\n" + `{"id":3,"do":"unlock","lock":1}` + "\n",
		`{"id":1,"do":"lock","key":"k","max_hold_ms":1}` + "\n" + `{"id":2,"do":"lock","key":"l","mode":"permits","n":1,"of":2}` + "\n{}",
		`{"id":1,"do":"once","key":"k"}` + "\n" + `{"id":2,"do":"finish","lock":1,"result":"r"}` + "\n" + `{"id":3,"do":"unlock","lock":1}` + "\n",
		`{"id":1,"do":"lock","key":"k"}` + "\n" + `{"id":1,"do":"lock","key":"l"}` + "\n" + `{"id":2,"do":"who"}` + "\n" + `{"id":2,"do":"ping"}` + "\nGET /",
		`{"id":1,"do":"leader","key":"k"}` + "\n" + `{"id":1,"do":"take","rule":"r","key":"k"}` + "\n",
	} {
		f.Add([]byte(seed))
	}
	store := memstore.New()
	locks, err := baton.New(store, baton.Config{})
	if err != nil {
		f.Fatal(err)
	}
	runner, err := once.New(store, once.Config{})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, sent []byte) {
		server, err := New(locks, Config{MaxLocks: 8, Once: runner})
		if err != nil {
			t.Fatal(err)
		}
		ours, theirs := net.Pipe()
		c, refused := server.admit(theirs, peer{uid: 7})
		if refused != nil {
			t.Fatal(refused)
		}
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			c.serve()
		}()
		go func() { _, _ = io.Copy(io.Discard, ours) }()
		_ = ours.SetWriteDeadline(time.Now().Add(patience))
		_, _ = ours.Write(sent) // the agent may end the session before the last byte
		_ = ours.Close()
		select {
		case <-ended:
		case <-time.After(patience):
			t.Fatalf("the session does not end: %q", sent)
		}
		if len(server.sessions) != 0 || len(server.users) != 0 || len(server.table.keys) != 0 || c.user.locks.Load() != 0 || len(c.locks) != 0 {
			t.Fatalf("%q leaves %d sessions, %d users, %d keys, %d locks behind", sent, len(server.sessions), len(server.users), len(server.table.keys), c.user.locks.Load())
		}
	})
}
