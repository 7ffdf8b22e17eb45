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

const (
	atFirst = 1000
	price   = 999 // of the gift
	bonus   = 100
	right   = atFirst - price + bonus
)

// outcome is the account after both have done their work.
type outcome struct {
	Points int      `json:"points"`
	Gift   bool     `json:"gift"`
	Right  bool     `json:"right"`
	Steps  []string `json:"steps"`
}

// account is a row of a database. A read is atomic and a write is atomic, but a read and
// a write that depends on it are not atomic together.
type account struct {
	mu     sync.Mutex
	points int
	steps  []string
}

func (a *account) read(who string) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps = append(a.steps, fmt.Sprintf("%-9s  reads %d", who, a.points))
	return a.points
}

func (a *account) write(who string, points int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.points = points
	a.steps = append(a.steps, fmt.Sprintf("%-9s  writes %d", who, points))
}

func (a *account) note(step string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.steps = append(a.steps, step)
}

// protect runs f for the shop or the promotion, with a lock or without.
type protect func(ctx context.Context, f func(context.Context) error) error

func unprotected(ctx context.Context, f func(context.Context) error) error { return f(ctx) }

// race lets the gift shop spend points while a promotion grants some.
//
// The worst moment always happens: the shop stops between its read and its write until
// the promotion has read as well, or is known to wait for the lock. Nothing else differs
// between a race with the lock and one without it.
func race(ctx context.Context, a *account, shop, promotion protect, waiting <-chan struct{}) (gift bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	shopRead, shopWrote := make(chan struct{}), make(chan struct{})
	promotionRead := make(chan struct{})

	var both sync.WaitGroup
	var shopErr, promotionErr error
	both.Go(func() {
		shopErr = shop(ctx, func(ctx context.Context) error {
			points := a.read("shop")
			close(shopRead)
			select {
			case <-promotionRead:
			case <-waiting:
				a.note("promotion  waits for the lock")
			case <-ctx.Done():
				return context.Cause(ctx)
			}
			if points >= price {
				a.write("shop", points-price)
				gift = true
			}
			close(shopWrote)
			return nil
		})
		if shopErr != nil {
			cancel()
		}
	})
	both.Go(func() {
		if promotionErr = await(ctx, shopRead); promotionErr != nil {
			return
		}
		promotionErr = promotion(ctx, func(ctx context.Context) error {
			points := a.read("promotion")
			close(promotionRead)
			if err := await(ctx, shopWrote); err != nil {
				return err
			}
			a.write("promotion", points+bonus)
			return nil
		})
		if promotionErr != nil {
			cancel()
		}
	})
	both.Wait()
	return gift, errors.Join(shopErr, promotionErr)
}

func await(ctx context.Context, event <-chan struct{}) error {
	select {
	case <-event:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func withoutLock(ctx context.Context) (outcome, error) {
	a := &account{points: atFirst}
	gift, err := race(ctx, a, unprotected, unprotected, nil)
	return result(a, gift), err
}

// withLock gives the shop and the promotion separate Lockers, as if they were two
// programs.
func withLock(ctx context.Context, store driver.Locks) (outcome, error) {
	const key = "examples/points/account/7"
	waiting := make(chan struct{}, 1)
	shop, err := baton.New(store, baton.Config{Owner: "shop", TTL: 5 * time.Second})
	if err != nil {
		return outcome{}, err
	}
	promotion, err := baton.New(store, baton.Config{
		Owner: "promotion", TTL: 5 * time.Second,
		Events: &baton.Events{Waiting: func(context.Context, baton.LockEvent) {
			select {
			case waiting <- struct{}{}:
			default: // known already
			}
		}},
	})
	if err != nil {
		return outcome{}, err
	}
	locked := func(by *baton.Locker) protect {
		return func(ctx context.Context, f func(context.Context) error) error {
			return by.Do(ctx, key, func(ctx context.Context, _ *baton.Lease) error { return f(ctx) })
		}
	}
	a := &account{points: atFirst}
	gift, err := race(ctx, a, locked(shop), locked(promotion), waiting)
	return result(a, gift), err
}

func result(a *account, gift bool) outcome {
	return outcome{Points: a.points, Gift: gift, Right: a.points == right && gift, Steps: a.steps}
}
