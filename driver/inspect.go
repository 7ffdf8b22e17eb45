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

// Inspector is implemented by stores that can show their locks to people and revoke them.
// The values that it returns give no program a holder's rights.
type Inspector interface {
	// Inspect shows one key. A key without holders and waiters is no error.
	Inspect(ctx context.Context, key string) (KeyInfo, error)

	// List shows every key that has a holder or a waiter and begins with prefix, in no
	// particular order. It reads page by page and is no snapshot. The first error ends
	// it.
	List(ctx context.Context, prefix string) iter.Seq2[KeyInfo, error]

	// Break ends the claims of all holders, or only those whose HolderInfo.Grant is one
	// of grants, and lets the store grant the waiters that now fit. The next token is
	// higher than theirs. Break reports how many claims it has ended. The comparison with
	// grants is atomic with the end of the claim: a claim that is granted meanwhile
	// stays.
	Break(ctx context.Context, key string, grants ...string) (ended int, err error)
}

// KeyInfo shows a lock to people.
type KeyInfo struct {
	Key     string
	Holders []HolderInfo // in the order of their grants
	Waiters []WaiterInfo // in the order of the queue
}

// Grants are the grants of the holders: Break with them ends no later grant. Break with
// an empty list ends all claims, so first check that there are holders.
func (i KeyInfo) Grants() (all []string) {
	for _, h := range i.Holders {
		all = append(all, h.Grant)
	}
	return all
}

// HolderInfo is one holder. Age and Remaining are by the store's clock.
type HolderInfo struct {
	Owner     string
	Weight    int64
	Capacity  int64
	Token     int64         // 0 if the store does not keep it
	Age       time.Duration // since the grant; negative if the store does not know
	Remaining time.Duration // until it expires, unless renewed
	Foreign   bool          // held by a program that is not Baton

	// Grant identifies a grant of the key. Compare it, not the owner: owners repeat. It
	// stays the same through renewal, Rename and Downgrade, and changes with Move. The
	// leases that a process hands over locally are one grant, and so are those of the
	// clients of one agent. Grants of a foreign program that writes the same value each
	// time look the same.
	Grant string
}

// GrantOf is the HolderInfo.Grant of the claim with this ID. It does not reveal the ID.
func GrantOf(id string) string {
	sum := sha256.Sum256([]byte(id))
	return hex.EncodeToString(sum[:8])
}

// Among reports whether Break with these grants ends grant g.
func Among(g string, grants []string) bool { return len(grants) == 0 || slices.Contains(grants, g) }

// SameGrant reports whether two looks at a lock saw the same grant, even if a process
// moved it to another one in between.
func (h HolderInfo) SameGrant(other HolderInfo) bool {
	return h.Grant == other.Grant || h.Token != 0 && h.Token == other.Token
}

// Mode is the kind of the claim: "exclusive", "shared", "2/10" for permits, or "" if the
// store does not know it.
func (h HolderInfo) Mode() string { return mode(h.Weight, h.Capacity) }

// WaiterInfo is one position in the queue.
type WaiterInfo struct {
	Owner    string
	Weight   int64
	Capacity int64
	Age      time.Duration // since it joined; negative if the store does not know
}

// Mode is the kind of the claim: see HolderInfo.Mode.
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
