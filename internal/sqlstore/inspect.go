package sqlstore

import (
	"iter"

	"github.com/batonhq/baton/driver"
)

// Info shows the rows of one key as they stand at now.
func Info(key string, k Key, claims []Claim, now int64) driver.KeyInfo {
	info := driver.KeyInfo{Key: key}
	if k.HeldAt(now) {
		info.Holders = append(info.Holders, driver.HolderInfo{
			Owner: k.Owner, Weight: k.Weight, Capacity: driver.Whole, Token: k.Token,
			Age: duration(max(0, now-k.Since)), Remaining: duration(k.Ends - now),
		})
	}
	for _, c := range claims {
		switch {
		case c.Ends <= now:
		case c.Held:
			info.Holders = append(info.Holders, driver.HolderInfo{
				Owner: c.Owner, Weight: c.Weight, Capacity: c.Capacity, Token: c.Seq,
				Age: duration(max(0, now-c.Since)), Remaining: duration(c.Ends - now),
			})
		default:
			info.Waiters = append(info.Waiters, driver.WaiterInfo{
				Owner: c.Owner, Weight: c.Weight, Capacity: c.Capacity, Age: duration(max(0, now-c.Since)),
			})
		}
	}
	return info
}

// List turns pages into the sequence that driver.Inspector wants. read
// returns the keys after the given one and the last key that it looked at, or
// "" if there are no more.
func List(read func(after string) (infos []driver.KeyInfo, last string, err error)) iter.Seq2[driver.KeyInfo, error] {
	return func(yield func(driver.KeyInfo, error) bool) {
		for after := ""; ; {
			infos, last, err := read(after)
			if err != nil {
				yield(driver.KeyInfo{}, err)
				return
			}
			for _, info := range infos {
				if len(info.Holders)+len(info.Waiters) > 0 && !yield(info, nil) {
					return
				}
			}
			if last == "" {
				return
			}
			after = last
		}
	}
}

// PrefixEnd is the first key in byte order that is above every key with the
// prefix, or nil if there is none.
func PrefixEnd(prefix string) []byte {
	end := []byte(prefix)
	for i := len(end) - 1; i >= 0; i-- {
		if end[i] < 0xff {
			end[i]++
			return end[:i+1]
		}
	}
	return nil
}
