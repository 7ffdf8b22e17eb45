// Package pagetest tests the page of server/page in a real browser. It is a module of its
// own, because nothing else needs what drives the browser. It has no code but its tests.
package pagetest
