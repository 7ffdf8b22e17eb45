// Package language names the languages of Baton's pages.
package language

// A Language is one of the constants. The zero Language means English, too.
type Language string

// The languages.
const (
	English Language = "en"
	Chinese Language = "zh"
)

// All are the languages.
var All = []Language{English, Chinese}
