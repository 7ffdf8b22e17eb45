// Package kept makes records of operations and overrides of limits out of one ability of
// a store: to keep a short text under a key for a while, and to replace it by
// compare-and-swap.
package kept

import (
	"context"
	"iter"
	"time"

	"github.com/batonhq/baton/driver/limits"
)

// A Folder is a namespace of keys.
type Folder string

// The folders, by their names in stores.
const (
	RecordsFolder   Folder = "records"
	OverridesFolder Folder = "overrides"
)

// Name is the name of a key in a table for all folders: "records/job".
func (f Folder) Name(key string) string { return string(f) + "/" + key }

// Key is the inverse of Name.
func (f Folder) Key(name []byte) string { return string(name[min(len(f)+1, len(name)):]) }

// Cut is the number of bytes of a text that List returns at least: enough for an
// override, for the first line of a record, and for the failure of an attempt.
const Cut = 8 << 10

// A Text is a text under a key. The zero Text says that the key has none.
type Text struct {
	Key  string
	Text string
	Left time.Duration // how much longer it is kept, at least; 0 if the store does not know
}

// never equals no text, so a Swap of it fails and returns the present text.
const never = "?"

// Texts is the ability of a store. A text that has expired by the store's clock counts as
// missing. Both functions obey their context; their errors are those of driver.Records.
type Texts struct {
	// Store is the short name of the store: "redis".
	Store string

	// Swap replaces the text old of a key by next and keeps that for keep from now. "" is
	// no text: as old it says that the key has none, as next it removes the text. Swap
	// returns the resulting text, and whether old was there. If old equals next, only the
	// time changes.
	//
	// With old and next empty, Swap only reads. Otherwise it must reach a server that
	// accepts writes, even if old is not there: another server may have an older text.
	Swap func(ctx context.Context, f Folder, key, old, next string, keep time.Duration) (is Text, swapped bool, err error)

	// List returns the texts whose keys begin with prefix. It reads page by page and is
	// no snapshot: see driver.RecordLister. It may cut texts after Cut bytes, so that a
	// page of long ones costs little.
	List func(ctx context.Context, f Folder, prefix string) iter.Seq2[Text, error]
}

// Page is the number of texts in a page: all overrides, because every process lists them
// regularly, and only so many records that a page of the longest fits into an answer.
func Page(f Folder) int {
	if f == OverridesFolder {
		return 2 * limits.MaxOverrides // twice, because several may be set at the same moment
	}
	return 50
}
