package questions

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/batonhq/baton"
	"github.com/batonhq/baton/guard"
	"github.com/batonhq/baton/lab"
)

// sales are the questions about a stock that many want.
var sales = []*lab.Question{
	{
		Name:  "flash-sale",
		Topic: lab.Holding,
		Ask:   text("100 items, 200 buyers: is a lock enough against overselling?", "秒杀：100 件库存、200 个买家，加锁就不会超卖吗？"),
		Answer: [3]lab.Text{
			text("Without a lock many read the same stock, and all of them sell the same item.", "不加锁时，很多请求读到同一个库存，把同一件商品卖了多次。"),
			text("With a lock it is right until one holder is paused past its expiry, and then writes what it read long ago.", "加锁之后是对的，直到某个持有者停顿到锁过期，醒来写回很久以前读到的库存。"),
			text("If the write checks the token, that of the late one is refused, and exactly 100 items are sold.", "写入时检查栅栏令牌，迟到者的写入被拒绝，正好卖出 100 件。"),
		},
		Needs: []lab.Server{lab.Redis},
		Tests: []string{
			"guard: TestGate",
			"drivertest: exclusion",
		},
		Run: flashSale,
	},
}

// A sale is a stock that many buyers read and write.
type sale struct {
	left, sold atomic.Int64
	gate       guard.Gate

	late  func() // wakes the one that is late, after its turn has come
	awake sync.Once
}

const (
	saleItems  = 100
	saleBuyers = 200
	saleWakes  = 40 // sold before the one that is late awakes
)

// buy reads the stock, does something, and writes it. write is how it writes.
func (s *sale) buy(write func(func() error) error) error {
	left := s.left.Load()
	time.Sleep(200 * time.Microsecond)
	if left < 1 {
		return nil
	}
	err := write(func() error {
		s.left.Store(left - 1)
		s.sold.Add(1)
		return nil
	})
	if s.late != nil && s.sold.Load() == saleWakes {
		s.awake.Do(s.late)
	}
	return err
}

func flashSale(ctx context.Context, r *lab.Run) error {
	server := startRedis(r)
	url := "redis://" + server.Addr
	freely := func(write func() error) error { return write() }

	// crowd lets all buyers buy, forty at a time.
	crowd := func(buy func() error) error {
		var buyers atomic.Int64
		errs := make([]error, 40)
		var all sync.WaitGroup
		for i := range errs {
			all.Go(func() {
				for errs[i] == nil && buyers.Add(1) <= saleBuyers {
					errs[i] = buy()
				}
			})
		}
		all.Wait()
		return errors.Join(errs...)
	}
	locks, _, err := lockerAt(ctx, r, url, baton.Config{})
	if err != nil {
		return err
	}

	// locked is a sale with a lock. If one is late, it has the lock first, reads the
	// stock, and stands still until its lock has expired and others have bought.
	locked := func(key string, late, token bool) (sold int64, refused error, err error) {
		var s sale
		s.left.Store(saleItems)
		with := func(l *baton.Lease) func(func() error) error {
			if !token {
				return freely
			}
			return func(write func() error) error { return s.gate.Do(ctx, key, guard.Of(l), write) }
		}
		if late {
			slow, stop, err := lockerAt(ctx, r, url, baton.Config{TTL: 300 * time.Millisecond})
			if err != nil {
				return 0, nil, err
			}
			lease, err := slow.Lock(ctx, key)
			if err != nil {
				return 0, nil, err
			}
			left := s.left.Load()
			stop()
			s.late = func() {
				refused = with(lease)(func() error {
					s.left.Store(left - 1)
					s.sold.Add(1)
					return nil
				})
			}
		}
		err = crowd(func() error {
			return locks.Do(ctx, key, func(_ context.Context, l *baton.Lease) error { return s.buy(with(l)) })
		})
		return s.sold.Load(), refused, err
	}
	var open sale
	open.left.Store(saleItems)
	r.Start()
	if err := crowd(func() error { return open.buy(freely) }); err != nil {
		return err
	}
	bare := open.sold.Load()
	lock, _, err1 := locked("lock", false, false)
	paused, accepted, err2 := locked("pause", true, false)
	token, refused, err3 := locked("token", true, true)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	chart := &lab.Chart{Y: text("items sold", "卖出件数"), Bound: &lab.Bound{At: saleItems, Name: text("100 in stock", "库存 100")}}
	t := r.Table(text("100 items, 200 buyers", "100 件库存，200 个买家"), text("sold", "卖出"), text("the late write", "迟到的写入"))
	none := text("there is none", "没有")
	for _, row := range []struct {
		name lab.Text
		sold int64
		late lab.Text
	}{
		{text("no lock", "不加锁"), bare, none},
		{text("lock", "加锁"), lock, none},
		{text("lock, one is paused", "加锁，一个停顿"), paused, text("accepted", "接受")},
		{text("lock, one is paused, token", "加锁，一个停顿，令牌"), token, text("refused", "拒绝")},
	} {
		chart.Bars = append(chart.Bars, lab.ChartBar{Name: row.name, Value: float64(row.sold), Shown: lab.Plain(row.sold), Bad: row.sold != saleItems})
		t.Add(row.name, row.sold, row.late)
	}
	r.Chart(chart)
	if bare <= saleItems || lock != saleItems || paused <= saleItems || token != saleItems || accepted != nil || !errors.Is(refused, guard.ErrStale) {
		return unexpected("sold %d, %d, %d, %d; the late writes: %v, %v", bare, lock, paused, token, accepted, refused)
	}
	r.Say("Of 100 items %d were sold without a lock, %d with a lock, %d with a lock and one paused holder, and %d when the write checks the token.",
		"100 件库存：不加锁卖出 %d 件，加锁卖出 %d 件，加锁但一个持有者停顿卖出 %d 件，写入时检查令牌卖出 %d 件。", bare, lock, paused, token)
	return nil
}
