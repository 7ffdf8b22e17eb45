package driver

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"slices"
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

	// Break ends the claims of all holders, or only those whose HolderInfo.Grant is one
	// of grants, and lets the store grant the waiters that now fit. The next token is
	// higher than theirs. It reports how many claims it has ended. Whether a claim is
	// one of grants is decided where it is ended: a claim that is granted meanwhile stays.
	Break(ctx context.Context, key string, grants ...string) (ended int, err error)
}

// KeyInfo shows a lock to people.
type KeyInfo struct {
	Key     string
	Holders []HolderInfo // in the order of their grants
	Waiters []WaiterInfo // in the order of the queue
}

// Grants are those of the holders: Break with them ends no later grant. None is all to
// Break, so ask whether there are holders first.
func (i KeyInfo) Grants() (all []string) {
	for _, h := range i.Holders {
		all = append(all, h.Grant)
	}
	return all
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

	// Grant tells this grant from every other one of the key: it is what to compare,
	// because owners repeat. It stays through renewal, Rename and Downgrade; Move makes
	// another one. The leases that a process hands over locally are one grant of the store,
	// and so are those of the clients of one agent. The grants
	// of a foreign program that writes the same value each time look the same.
	Grant string
}

// GrantOf is the HolderInfo.Grant of what a claim with this ID holds. The ID cannot be
// found from it.
func GrantOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// Among reports whether Break with these grants ends the grant g.
func Among(g string, grants []string) bool { return len(grants) == 0 || slices.Contains(grants, g) }

// SameGrant reports whether two looks at a lock saw the same grant, which may have been
// moved to another process meanwhile.
func (h HolderInfo) SameGrant(other HolderInfo) bool {
	return h.Grant == other.Grant || h.Token != 0 && h.Token == other.Token
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
