// Package kept makes the records of operations and the overrides of limits of one ability
// that a store has: it keeps a short text under a key for a while, and replaces the text
// only if that is still the one which the caller has read.
package kept

import (
	"context"
	"iter"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// A Folder has keys of its own.
type Folder string

// The folders, as stores name them.
const (
	RecordsFolder   Folder = "records"
	OverridesFolder Folder = "overrides"
)

// Name is the name of a key where one table has all folders: "records/job".
func (f Folder) Name(key string) string { return string(f) + "/" + key }

// Key is the reverse of Name.
func (f Folder) Key(name []byte) string { return string(name[min(len(f)+1, len(name)):]) }

// Cut is how many bytes of a text List returns at least: enough for an override, for the
// first line of a record, and for how an attempt has failed.
const Cut = 8 << 10

// A Text is what is kept under a key. The zero Text is that of a key which has none.
type Text struct {
	Key  string
	Text string
	Left time.Duration // how much longer it is kept, at least; 0 if the store does not know
}

// never is no text, so that a Swap of it is refused with what is there.
const never = "?"

// Texts is the ability of a store. A text that has expired by the store's clock is as if
// it were not there. Both functions obey their context; their errors are those of
// driver.Records.
type Texts struct {
	// Store is the short name of the store: "redis".
	Store string

	// Swap makes next the text of a key, and keeps it for keep from now, if old is what
	// the key has. "" is no text: as old it says that the key has none, as next it
	// removes the text. Swap returns what the key has afterwards, and whether old was
	// there. Two equal texts are one: only the time changes.
	//
	// With old and next empty, Swap only looks. Otherwise a server that may not write
	// answers with an error, also if old is not there: it may not have heard of what is.
	Swap func(ctx context.Context, f Folder, key, old, next string, keep time.Duration) (is Text, swapped bool, err error)

	// List returns the texts whose keys begin with prefix. It reads page by page and is no
	// snapshot: see driver.RecordLister. Texts may be cut behind Cut bytes, so that a page
	// of long ones costs little.
	List func(ctx context.Context, f Folder, prefix string) iter.Seq2[Text, error]
}

// Page is how many texts a store reads at once that reads pages: all overrides, which every
// process lists all the time, and so many records that a store which does not cut them can
// answer with the longest.
func Page(f Folder) int {
	if f == OverridesFolder {
		return 2 * limits.MaxOverrides // that many, if several are set at the same moment
	}
	return 50
}
