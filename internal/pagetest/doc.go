// Package pagetest tests the page of server/page, and the site that make site builds, in a real browser.
// It is a module of its own, because only it needs the browser's driver. It has only tests.
package pagetest
