// Package proxies runs nginx and Caddy in front of an application, as docs/proxies.md
// configures them, and lets them limit its callers through package server. It has no
// code but its tests.
package proxies
