// Package measure measures locks: how long they take, how many there are in a second, and
// how evenly callers are served, with growing numbers of callers. It uses only keys of its
// own, with a random name, which are free when it returns.
package measure
