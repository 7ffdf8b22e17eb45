// Package roles decides what a caller may do. It reads the file of roles, finds the caller
// of an access token, a certificate or a user of the host, and decides by the prefix of a
// key and a verb.
//
// A file has one line for each caller:
//
//	# NAME    CREDENTIALS                PREFIX=VERBS …
//	team-a    sha256:9f86d081…           a/=lock,list  a/secret/=
//	shop      cn:shop.example            shop/=limit
//	ops       sha256:fcde2b2e…           =list,break
//	uid:1001  -                          app/=lock,once
//
// Blanks separate columns. A credential is the SHA-256 of an access token, the common name
// of a certificate's subject (cn:NAME), or a URI among its alternative names (uri:URI).
// Commas separate several credentials, so that one can be replaced without an
// interruption. A user of the host, whom the kernel names at a Unix socket, has "-".
//
// The longest of a caller's prefixes that a key begins with decides alone. Prefixes are
// compared byte by byte; there are no patterns. A key that begins with none of them is
// denied.
package roles
