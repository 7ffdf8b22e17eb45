// Package measure measures locks: how long they take, how many there are in a
// second, and how evenly they are served, as more and more ask for them. It
// uses keys of its own with a random name, which are free when it returns, and
// touches no others.
package measure
