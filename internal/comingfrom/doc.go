// Package comingfrom holds the tests of the pages for users of other libraries,
// docs/coming-from.md and docs/coming-from/, and of the tutorials. Their Go code is that
// of a test, their commands run against real servers, and their rules decide as the pages
// say. A page with code that no test has fails. It has no code but its tests.
package comingfrom
