// Package pagestried holds the tests that try what pages show: docs/coming-from.md,
// docs/coming-from/, docs/tutorials/, docs/explanation/ and docs/howto/. Their Go code is
// that of a test or of an example, their commands run against real servers and print what
// the page says, and their rules decide as the page says. A page with code that no test
// has fails. The package has no code but its tests.
package pagestried
