package sqlstore

import (
	"iter"
	"slices"

	"github.com/batonhq/baton/driver"
)

// Info shows the rows of one key at now.
func Info(key string, k Key, claims []Claim, now int64) driver.KeyInfo {
	info := driver.KeyInfo{Key: key}
	if k.HeldAt(now) {
		info.Holders = append(info.Holders, driver.HolderInfo{
			Owner: k.Owner, Weight: k.Weight, Capacity: driver.Whole, Token: k.Token,
			Age: duration(max(0, now-k.Since)), Remaining: duration(k.Ends - now), Grant: driver.GrantOf(k.ID),
		})
	}
	for _, c := range claims {
		switch {
		case c.Ends <= now:
		case c.Held:
			info.Holders = append(info.Holders, driver.HolderInfo{
				Owner: c.Owner, Weight: c.Weight, Capacity: c.Capacity, Token: c.Seq,
				Age: duration(max(0, now-c.Since)), Remaining: duration(c.Ends - now), Grant: driver.GrantOf(c.ID),
			})
		default:
			info.Waiters = append(info.Waiters, driver.WaiterInfo{
				Owner: c.Owner, Weight: c.Weight, Capacity: c.Capacity, Age: duration(max(0, now-c.Since)),
			})
		}
	}
	return info
}

// List makes the sequence of driver.Inspector.List. read is as for Pages.
func List(read func(after string) (infos []driver.KeyInfo, last string, err error)) iter.Seq2[driver.KeyInfo, error] {
	return Pages(func(after string) ([]driver.KeyInfo, string, error) {
		infos, last, err := read(after)
		return slices.DeleteFunc(infos, func(i driver.KeyInfo) bool { return len(i.Holders)+len(i.Waiters) == 0 }), last, err
	})
}

// Pages makes a sequence of pages. read returns what to show of the keys after after, and
// the last key that it has read, or "" at the end.
func Pages[T any](read func(after string) (page []T, last string, err error)) iter.Seq2[T, error] {
	return PagesAfter("", read)
}

// PagesAfter is Pages of the keys after after.
func PagesAfter[T any](after string, read func(after string) (page []T, last string, err error)) iter.Seq2[T, error] {
	return func(yield func(T, error) bool) {
		for after := after; ; {
			page, last, err := read(after)
			if err != nil {
				var none T
				yield(none, err)
				return
			}
			for _, one := range page {
				if !yield(one, nil) {
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

// Span is the range of the keys that begin with prefix and come after after: from
// inclusive, end exclusive. With one bound on each side every server reads only that
// range.
func Span(prefix, after string) (from, end []byte) {
	from, end = []byte(prefix), PrefixEnd(prefix)
	if after != "" && after >= prefix {
		from = append([]byte(after), 0) // the next text in order
	}
	if end == nil {
		end = []byte{0xff} // above all UTF-8
	}
	return from, end
}

// PrefixEnd is the first key in byte order above every key with the prefix, or nil if
// there is none.
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
