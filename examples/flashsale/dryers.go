package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/driver"
)

const dryers = 2

// customers come in this order; wants is how many each wants.
var customers = []struct {
	name  string
	wants int
}{
	{"Ada", 1}, {"Bao", 2}, {"Chen", 1}, {"Dana", 1}, {"Emre", 2},
}

// dryerSale is how many hair dryers each customer got, in the order of customers.
type dryerSale struct {
	Got       []int `json:"got"`
	Sold      int   `json:"sold"`
	Oversold  bool  `json:"oversold"`
	rightFull bool  // first come, first served, as long as the stock lasts
}

// protect runs f for one customer, with a lock or without.
type protect func(ctx context.Context, f func(context.Context) error) error

func unprotected(ctx context.Context, f func(context.Context) error) error { return f(ctx) }

// sellDryers serves each customer in a separate shop: read the stock, decide, write the
// new stock.
//
// The worst moment always happens: between its read and its decision a shop stops until
// all other shops have read as well, or are known to wait for the lock. arrived[i]
// receives when that is known of customer i, possibly twice.
func sellDryers(ctx context.Context, shops []protect, arrived []chan struct{}) (dryerSale, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var mu sync.Mutex
	stock := dryers
	sale := dryerSale{Got: make([]int, len(customers))}
	allLooked := make(chan struct{})

	var all sync.WaitGroup
	errs := make([]error, len(customers))
	for i, c := range customers {
		all.Go(func() {
			errs[i] = shops[i](ctx, func(ctx context.Context) error {
				mu.Lock()
				seen := stock
				mu.Unlock()
				arrive(arrived[i])
				if err := await(ctx, allLooked); err != nil {
					return err
				}
				if seen < c.wants {
					return nil
				}
				mu.Lock()
				defer mu.Unlock()
				stock = seen - c.wants
				sale.Got[i] = c.wants
				return nil
			})
			if errs[i] != nil {
				cancel()
			}
		})
		// The next customer comes when this one is served, or waits.
		if await(ctx, arrived[i]) != nil {
			break
		}
	}
	close(allLooked)
	all.Wait()

	sale.rightFull = true
	left := dryers
	for i, c := range customers {
		sale.Sold += sale.Got[i]
		fair := 0
		if c.wants <= left {
			fair = c.wants
		}
		left -= fair
		sale.rightFull = sale.rightFull && sale.Got[i] == fair
	}
	sale.Oversold = sale.Sold > dryers
	return sale, errors.Join(errs...)
}

func arrive(at chan<- struct{}) {
	select {
	case at <- struct{}{}:
	default: // known already
	}
}

func await(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func newArrivals() []chan struct{} {
	arrived := make([]chan struct{}, len(customers))
	for i := range arrived {
		arrived[i] = make(chan struct{}, 1)
	}
	return arrived
}

func dryersWithoutLock(ctx context.Context) (dryerSale, error) {
	shops := make([]protect, len(customers))
	for i := range shops {
		shops[i] = unprotected
	}
	return sellDryers(ctx, shops, newArrivals())
}

// dryersWithLock gives each customer's shop a separate Locker, as if they were five
// programs.
func dryersWithLock(ctx context.Context, store driver.Locks) (dryerSale, error) {
	arrived := newArrivals()
	shops := make([]protect, len(customers))
	for i := range shops {
		locks, err := baton.New(store, baton.Config{
			Owner:  fmt.Sprintf("shop of %s", customers[i].name),
			TTL:    5 * time.Second,
			Events: &baton.Events{Waiting: func(context.Context, baton.LockEvent) { arrive(arrived[i]) }},
		})
		if err != nil {
			return dryerSale{}, err
		}
		shops[i] = func(ctx context.Context, f func(context.Context) error) error {
			return locks.Do(ctx, "examples/flashsale/dryers", func(ctx context.Context, _ *baton.Lease) error { return f(ctx) })
		}
	}
	return sellDryers(ctx, shops, arrived)
}
