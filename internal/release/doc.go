// Release builds what a release of Baton consists of: the command for each platform, the
// packages for Debian, and their checksums. The same tree gives the same bytes, in any
// folder and at any time, if the versions of Go and of dpkg are the same.
package main
