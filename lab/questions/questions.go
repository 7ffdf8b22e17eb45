// Package questions has the questions of the laboratory. An experiment is written to be
// read: it shows first what goes wrong with the commands that people type, and then what
// Baton does. It fails if the outcome contradicts its answer.
package questions

import (
	"slices"

	"github.com/batonhq/baton/lab"
)

// All are the questions, in the order of their topics.
func All() []*lab.Question {
	all := slices.Concat(redis, split, programs, holding, renewing, outage, waiting, majority, databases, idempotency, limiting)
	slices.SortStableFunc(all, func(a, b *lab.Question) int { return int(a.Topic - b.Topic) })
	return all
}

// text is a Text.
func text(english, chinese string) lab.Text { return lab.Text{EN: english, ZH: chinese} }
