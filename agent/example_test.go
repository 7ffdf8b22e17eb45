package agent_test

import (
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/agent"
	"github.com/batonhq/baton/store/memstore"
)

// An agent inside of a program: other processes of the host lock through its socket.
func Example() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	locks, err := baton.New(memstore.New(), baton.Config{})
	if err != nil {
		log.Fatal(err)
	}
	s, err := agent.New(locks, agent.Config{})
	if err != nil {
		log.Fatal(err)
	}
	l, err := agent.Listen("/run/baton/agent.sock", 0o660)
	if err != nil {
		log.Fatal(err)
	}
	if err := s.Serve(ctx, l); err != nil {
		log.Fatal(err)
	}
}
