// Package modtest tests the modules of this repository as those get them who
// fetch them: outside the workspace, from a proxy, with the requirements of
// each module alone. It has no code but its tests.
package modtest
