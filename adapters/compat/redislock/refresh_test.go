package redislock_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/batonhq/baton/adapters/compat/redislock"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// A Refresh whose answer is lost may have made the lock shorter: TTL tells no more than that.
func TestTTLAfterALostAnswer(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedRedis(t).Addr)
	c := redis.NewClient(&redis.Options{Addr: proxy.Addr})
	defer c.Close()
	ours := redislock.New(c)
	const short = 20 * time.Second
	// The server knows the scripts from now on, so that the first request takes effect.
	warm, err := ours.Obtain(t.Context(), "refresh/warm", time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := warm.Refresh(t.Context(), time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	lock, err := ours.Obtain(t.Context(), "refresh/lost", time.Hour, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = lock.Release(t.Context()) }()
	cut := proxy.CutAfterRequest(func(request []byte) bool { return bytes.Contains(request, []byte("refresh/lost")) })
	if err := lock.Refresh(t.Context(), short, nil); err == nil {
		t.Fatal("the answer was not lost")
	}
	<-cut
	proxy.Accept()
	server := redis.NewClient(&redis.Options{Addr: testserver.SharedRedis(t).Addr})
	defer server.Close()
	if left := server.PTTL(t.Context(), "refresh/lost").Val(); left > short+time.Second {
		t.Fatalf("the Refresh had no effect: %s are left", left)
	}
	if left, err := lock.TTL(t.Context()); err != nil || left <= 0 || left > short {
		t.Errorf("TTL tells %s, %v; the server has at most %s", left, err, short)
	}
	if err := lock.Refresh(t.Context(), time.Hour, nil); err != nil {
		t.Fatal(err)
	}
	if left, err := lock.TTL(t.Context()); err != nil || left <= short {
		t.Errorf("after a Refresh with an answer TTL tells %s, %v", left, err)
	}
}
