// Package archtest holds the rules of this repository that a program can check:
// which package may import which, how long a file may be, and how tests wait. It has
// no code but its tests.
package archtest
