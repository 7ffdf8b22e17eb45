// Command etcdserver is the etcd server, as a program that the tests can build: Debian
// has no version that is still maintained. It takes etcd's own arguments. It is a
// separate module so that the many packages that only the server needs stay out of the
// product's go.mod.
package main

import (
	"os"

	"go.etcd.io/etcd/server/v3/etcdmain"
)

func main() { etcdmain.Main(os.Args) }
