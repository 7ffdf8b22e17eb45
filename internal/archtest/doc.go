// Package archtest holds the rules of this repository that a program can check:
// which package may import which, how long a file may be, how tests wait, which
// words are used, and what the pages say of the code. It has no code but its tests.
package archtest
