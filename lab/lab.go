// Package lab answers common questions about distributed locks and rate limits by
// experiment. Each question is an experiment with real servers, which ends with a table and
// a picture. Its result is a Record; pictures are drawn from records alone, so the same
// record gives the same picture, byte by byte.
package lab

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/batonhq/baton/lab/language"
)

// A Text is a text in both languages.
type Text struct{ EN, ZH string }

// Plain is a text that is the same in both languages: a number, a name.
func Plain(v any) Text {
	s := fmt.Sprint(v)
	return Text{s, s}
}

// Textf formats the same values in both languages.
func Textf(english, chinese string, values ...any) Text {
	return Text{fmt.Sprintf(english, values...), fmt.Sprintf(chinese, values...)}
}

// In returns the text in a language.
func (t Text) In(l language.Language) string {
	if l == language.Chinese {
		return t.ZH
	}
	return t.EN
}

// MarshalJSON writes a text that is the same in both languages as a string.
func (t Text) MarshalJSON() ([]byte, error) {
	if t.EN == t.ZH {
		return json.Marshal(t.EN)
	}
	return json.Marshal(map[language.Language]string{language.English: t.EN, language.Chinese: t.ZH})
}

// UnmarshalJSON reads what MarshalJSON writes.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '"' {
		if err := json.Unmarshal(b, &t.EN); err != nil {
			return err
		}
		t.ZH = t.EN
		return nil
	}
	var both struct {
		EN string `json:"en"`
		ZH string `json:"zh"`
	}
	if err := json.Unmarshal(b, &both); err != nil {
		return err
	}
	*t = Text{both.EN, both.ZH}
	return nil
}

// A Topic is a group of questions, in the order in which they are listed.
type Topic int

// The topics.
const (
	OneServer Topic = iota // a lock on one server
	Holding                // what a holder can rely on
	Waiting                // which caller is next
	Majority               // Redlock, consensus
	Once                   // idempotency
	Limits                 // rate limits
)

// Title is the topic's name.
func (t Topic) Title() Text {
	return [...]Text{
		{"A lock on one server", "单机锁"},
		{"What a holder can rely on", "持有者能依赖什么"},
		{"Who is next", "谁是下一个"},
		{"Majorities", "多数派"},
		{"Once", "幂等"},
		{"Limits", "限流"},
	}[t]
}

// A Question is one experiment.
type Question struct {
	Name   string // one word, or several with hyphens
	Topic  Topic
	Ask    Text
	Answer [3]Text // three lines
	Needs  []Server
	Tests  []string // these fail if the answer is no longer true: a package's folder and their names, "drivertest: exclusion"

	// Run makes the experiment. It returns an error if the outcome contradicts Answer.
	Run func(ctx context.Context, r *Run) error
}

// A Server is a program that an experiment needs.
type Server string

// The servers. An experiment that needs none uses memory or SQLite.
const (
	Redis     Server = "redis-server"
	ZooKeeper Server = "zookeeper"
	Postgres  Server = "postgresql"
	Faketime  Server = "libfaketime" // for servers whose clocks are wrong
)
