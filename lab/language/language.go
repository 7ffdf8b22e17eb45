// Package language names the languages that people read here.
package language

// A Language is one of them. English is the zero Language, too.
type Language string

// The languages.
const (
	English Language = "en"
	Chinese Language = "zh"
)

// All are all of them.
var All = []Language{English, Chinese}
