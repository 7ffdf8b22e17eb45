// Package pagetest tests the page of server/page, and the site that make site builds, in a real browser. It is a module of its
// own, because nothing else needs what drives the browser. It has no code but its tests.
package pagetest
