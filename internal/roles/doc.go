// Package roles says who may do what: it reads the file of roles, finds the caller that
// an access token, a certificate or a user of the host stands for, and decides by the
// prefix of a key and a verb.
//
// A file has one line for each caller:
//
//	# NAME    CREDENTIALS                PREFIX=VERBS …
//	team-a    sha256:9f86d081…           a/=lock,list  a/secret/=
//	shop      cn:shop.example            shop/=limit
//	ops       sha256:fcde2b2e…           =list,break
//	uid:1001  -                          app/=lock,once
//
// Columns are separated by blanks. A credential is the SHA-256 of an access token, the
// common name of a certificate's subject (cn:NAME), or a URI among its alternative names
// (uri:URI). Several are separated by commas, so that one can be replaced without an
// interruption. A user of the host, who is known by a socket, has "-".
//
// Of the prefixes of a caller the longest one that a key begins with decides, alone. They
// are compared byte by byte; there are no patterns. Keys below no prefix are denied.
package roles
