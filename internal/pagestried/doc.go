// Package pagestried holds the tests that try what pages show. The Go code of
// docs/coming-from.md, docs/coming-from/, docs/tutorials/, docs/explanation/ and docs/howto/
// is that of a test or of an example, their commands run against real servers and print what
// the page says, and their rules decide as the page says. Of all pages, each block of
// commands runs here or in the test that a list names, or the list says why it cannot; a
// block in no list fails. The package has no code but its tests.
package pagestried
