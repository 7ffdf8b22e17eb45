package zkstore

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net"
	"net/http/httptest"
	"testing"

	"github.com/batonhq/baton/internal/testserver"
)

// The client speaks TLS to a proxy before the server.
func TestTLS(t *testing.T) {
	t.Parallel()
	server := testserver.SharedZooKeeper(t)
	web := httptest.NewUnstartedServer(nil) // for its certificate
	web.StartTLS()
	defer web.Close()
	front, err := tls.Listen("tcp", "127.0.0.1:0", &tls.Config{Certificates: web.TLS.Certificates})
	if err != nil {
		t.Fatal(err)
	}
	defer front.Close()
	go func() {
		for {
			c, err := front.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				back, err := net.Dial("tcp", server.Addr)
				if err != nil {
					return
				}
				defer back.Close()
				go func() {
					_, _ = io.Copy(back, c) // ends with either side
					back.Close()
				}()
				_, _ = io.Copy(c, back)
			}()
		}
	}()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	s := mustOpen(t, Server{Addrs: []string{front.Addr().String()}, TLS: &tls.Config{RootCAs: roots}}, Config{Root: "/tls"})
	r := writer("k")
	hold(t, s, r)
	release(t, s, r)
}
