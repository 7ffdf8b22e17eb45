package driver

import (
	"context"
	"fmt"
	"iter"
	"time"
)

// Inspector is implemented by stores that can show their locks to people and revoke
// them. No program can act as a holder with what it returns.
type Inspector interface {
	// Inspect shows one key. A key without holders and waiters is not an error: its
	// KeyInfo has neither.
	Inspect(ctx context.Context, key string) (KeyInfo, error)

	// List shows every key that has a holder or a waiter and begins with prefix, in
	// no particular order. It reads page by page and is no snapshot. The first
	// error ends it.
	List(ctx context.Context, prefix string) iter.Seq2[KeyInfo, error]

	// Break ends the claims of all holders and lets the store grant the next
	// waiter. The next token is higher than theirs. It reports how many holders
	// there were.
	Break(ctx context.Context, key string) (holders int, err error)
}

// KeyInfo shows a lock to people.
type KeyInfo struct {
	Key     string
	Holders []HolderInfo // in the order of their grants
	Waiters []WaiterInfo // in the order of the queue
}

// HolderInfo is one holder. Ages and remaining times are by the store's clock.
type HolderInfo struct {
	Owner     string
	Weight    int64
	Capacity  int64
	Token     int64         // 0 if the store does not keep it
	Age       time.Duration // since the grant; negative if the store does not know
	Remaining time.Duration // until it expires, unless renewed
	Foreign   bool          // held by a program that is not Baton
}

// SameGrant reports whether two looks at a lock saw the same grant. Where the store keeps
// no tokens, the grants of a holder that releases the lock and takes it again look the same.
func (h HolderInfo) SameGrant(other HolderInfo) bool {
	if h.Token != 0 || other.Token != 0 {
		return h.Token == other.Token
	}
	return h.Owner == other.Owner && h.Foreign == other.Foreign
}

// Mode names the kind of the claim: "exclusive", "shared", "2/10" for permits, or "" if
// the store does not know it.
func (h HolderInfo) Mode() string { return mode(h.Weight, h.Capacity) }

// WaiterInfo is one position in the queue.
type WaiterInfo struct {
	Owner    string
	Weight   int64
	Capacity int64
	Age      time.Duration // since it joined; negative if the store does not know
}

// Mode names the kind of the claim, as HolderInfo.Mode does.
func (w WaiterInfo) Mode() string { return mode(w.Weight, w.Capacity) }

func mode(weight, capacity int64) string {
	switch {
	case weight == Whole:
		return "exclusive"
	case capacity == Whole:
		return "shared"
	case capacity > 0:
		return fmt.Sprintf("%d/%d", weight, capacity)
	}
	return ""
}
