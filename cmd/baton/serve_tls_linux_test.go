package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/batonhq/baton/internal/roles"
)

// An authority signs certificates.
type authority struct {
	t    *testing.T
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
	dir  string
}

func newAuthority(t *testing.T, name string) *authority {
	t.Helper()
	a := &authority{t: t, dir: t.TempDir()}
	var err error
	if a.key, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader); err != nil {
		t.Fatal(err)
	}
	a.cert = &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, a.cert, a.cert, a.key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	a.write("ca.crt", "CERTIFICATE", der, 0o644)
	return a
}

// write writes a file in one step, as tools that replace certificates do.
func (a *authority) write(name, kind string, der []byte, mode os.FileMode) string {
	a.t.Helper()
	path := filepath.Join(a.dir, name)
	if err := os.WriteFile(path+".new", pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}), mode); err != nil {
		a.t.Fatal(err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		a.t.Fatal(err)
	}
	return path
}

func (a *authority) pool() *x509.CertPool {
	a.t.Helper()
	text, err := os.ReadFile(filepath.Join(a.dir, "ca.crt"))
	if err != nil {
		a.t.Fatal(err)
	}
	p := x509.NewCertPool()
	p.AppendCertsFromPEM(text)
	return p
}

// sign signs a certificate, and writes it and its key.
func (a *authority) sign(file string, c *x509.Certificate) (cert, key string, pair tls.Certificate) {
	a.t.Helper()
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<60))
	if err != nil {
		a.t.Fatal(err)
	}
	c.SerialNumber = serial
	if c.NotAfter.IsZero() {
		c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(time.Hour)
	}
	of, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, of.Public(), a.key)
	if err != nil {
		a.t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(of)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, key = a.write(file+".crt", "CERTIFICATE", der, 0o644), a.write(file+".key", "PRIVATE KEY", secret, 0o600)
	if pair, err = tls.LoadX509KeyPair(cert, key); err != nil {
		a.t.Fatal(err)
	}
	return cert, key, pair
}

func (a *authority) server() (cert, key string) {
	cert, key, _ = a.sign("server", &x509.Certificate{
		Subject: pkix.Name{CommonName: "server"}, IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	})
	return cert, key
}

// client is the certificate of a client, by its common name, or by a URI.
func (a *authority) client(name string, change func(*x509.Certificate)) tls.Certificate {
	a.t.Helper()
	c := &x509.Certificate{Subject: pkix.Name{CommonName: name}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}
	if strings.Contains(name, "://") {
		u, err := url.Parse(name)
		if err != nil {
			a.t.Fatal(err)
		}
		c.Subject.CommonName, c.URIs = "", []*url.URL{u}
	}
	if change != nil {
		change(c)
	}
	_, _, pair := a.sign("client", c)
	return pair
}

// as is the process, called by a client of its own with this configuration of TLS.
func (s *servedProcess) as(t *testing.T, roots *x509.CertPool, certs ...tls.Certificate) *servedProcess {
	t.Helper()
	// A client that shows a certificate although its CA is not asked for.
	show := func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		if len(certs) == 0 {
			return &tls.Certificate{}, nil
		}
		return &certs[0], nil
	}
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, GetClientCertificate: show}, ForceAttemptHTTP2: true}
	t.Cleanup(transport.CloseIdleConnections)
	c := *s
	c.t, c.http = t, &http.Client{Transport: transport}
	return &c
}

// refusedTLS demands that no answer comes: the handshake fails.
func (s *servedProcess) refusedTLS(what string) {
	s.t.Helper()
	res, err := s.http.Do(s.request("", "Locks/List", "{}"))
	if err == nil {
		res.Body.Close()
		s.t.Errorf("%s: it got %d, want no connection", what, res.StatusCode)
	}
}

// Certificates in the wrong hands, and connections without TLS.
func TestServeAttacksOnTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cert, key := ours.server()
	ca := filepath.Join(ours.dir, "ca.crt")
	path := writeRoles(t, dir, "cart cn:cart.example cart/=lock\nmesh uri:spiffe://example/mesh mesh/=lock\n")
	s := startServe(t, dir, "--roles", path, "--tls-cert", cert, "--tls-key", key, "--client-ca", ca)
	roots := ours.pool()

	for name, c := range map[string]struct {
		cert   tls.Certificate
		key    string
		status int
	}{
		"a name":                 {ours.client("cart.example", nil), "cart/x", 200},
		"the keys of another":    {ours.client("cart.example", nil), "mesh/x", 403},
		"a URI":                  {ours.client("spiffe://example/mesh", nil), "mesh/x", 200},
		"the end of a URI":       {ours.client("spiffe://example/mesh/x", nil), "mesh/x", 401},
		"a URI as the name":      {ours.client("x", func(c *x509.Certificate) { c.Subject.CommonName = "spiffe://example/mesh" }), "mesh/x", 401},
		"an unknown name":        {ours.client("nobody.example", nil), "cart/x", 401},
		"a name in another case": {ours.client("CART.example", nil), "cart/x", 401},
		"an organisation's name": {ours.client("", func(c *x509.Certificate) { c.Subject = pkix.Name{Organization: []string{"cart.example"}} }), "cart/x", 401},
		"a name of DNS":          {ours.client("", func(c *x509.Certificate) { c.DNSNames = []string{"cart.example"} }), "cart/x", 401},
		"the names of two":       {ours.client("cart.example", func(c *x509.Certificate) { c.URIs = []*url.URL{{Scheme: "spiffe", Host: "example", Path: "/mesh"}} }), "cart/x", 401},
		"the name of a token":    {ours.client("team-a", nil), "a/x", 401},
		"of another CA":          {theirs.client("cart.example", nil), "", 0},
		"expired": {ours.client("cart.example", func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(-time.Hour), time.Now().Add(-time.Minute)
		}), "", 0},
		"not valid yet": {ours.client("cart.example", func(c *x509.Certificate) {
			c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(2*time.Hour)
		}), "", 0},
		"that of a server": {ours.client("cart.example", func(c *x509.Certificate) { c.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth} }), "", 0},
		"no name at all":   {ours.client("", nil), "cart/x", 401},
	} {
		client := s.as(t, roots, c.cert)
		if c.status == 0 {
			client.refusedTLS(name)
			continue
		}
		if a := client.call("", "Locks/Acquire", fmt.Sprintf(`{"key":%q,"op":%q}`, c.key, name+" of 16 bytes or more")); a.Status != c.status {
			t.Errorf("%s: %v, want %d", name, a, c.status)
		}
	}

	// Without a certificate an access token is needed, and counts.
	nobody := s.as(t, roots)
	nobody.wants(http.StatusUnauthorized, "", "Locks/List", "{}")
	nobody.wants(http.StatusOK, tokenA, "Locks/List", `{"prefix":"a/x"}`)

	// A client without our CA does not trust the server, and tells it no access token.
	s.as(t, theirs.pool()).refusedTLS("a client that trusts another CA")

	// What is not TLS, or too old, is not served.
	if back, _ := s.raw(s.dial(), "GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"); !strings.HasPrefix(back, "HTTP/1.0 400 ") {
		t.Errorf("without TLS: %q", back)
	}
	if back, _ := s.raw(s.dial(), "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"); strings.Contains(back, "baton") {
		t.Errorf("HTTP/2 without TLS: %q", back)
	}
	conn, err := tls.Dial("tcp", s.addr, &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11})
	if err == nil {
		conn.Close()
		t.Error("TLS 1.1 is spoken")
	}
	// A handshake that stops half-way holds a connection for a few seconds only.
	if _, took := s.raw(s.dial(), "\x16\x03\x01"); took > 15*time.Second {
		t.Errorf("a handshake that stops was closed after %v", took)
	}
}

// What was revoked ends at once, also on a connection that is open.
func TestServeAttackByRevokedCallers(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	ours, theirs := newAuthority(t, "ours"), newAuthority(t, "theirs")
	cert, key := ours.server()
	ca := filepath.Join(ours.dir, "ca.crt")
	path := writeRoles(t, dir, "cart cn:cart.example cart/=lock\n")
	s := startServe(t, dir, "--roles", path, "--tls-cert", cert, "--tls-key", key, "--client-ca", ca)
	roots := ours.pool()
	cart, a := s.as(t, roots, ours.client("cart.example", nil)), s.as(t, roots)
	lease := a.held(tokenA, `{"key":"a/revoked","ttl_ms":20000}`)
	renew := fmt.Sprintf(`{"handle":%q}`, lease.Handle)
	cart.held("", `{"key":"cart/x"}`)

	reload := func(pattern string, changes ...func()) { // a change is told of without a HUP, too, but later
		t.Helper()
		before := strings.Count(s.errs.String(), "\n")
		for _, change := range changes {
			change()
		}
		if err := s.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		s.errs.await(t, `(?s)\A(?:[^\n]*\n){`+strconv.Itoa(before)+`}.*`+pattern)
	}
	// A bad file changes nothing.
	good, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	write := func(text string) func() {
		return func() {
			t.Helper()
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	reload("the previous roles stay in force: .*line 1.*certificates were read", write("team-a "+roles.Credential(tokenA)+" a/=lokc\n"))
	a.wants(http.StatusOK, tokenA, "Locks/Renew", renew)
	s.wrote("the previous roles stay in force", "line 1")

	// A role that has less.
	reload("0 callers added, 0 removed, 1 changed.*certificates were read", write(strings.ReplaceAll(string(good), "a/=lock,list", "a/=list")))
	a.wants(http.StatusForbidden, tokenA, "Locks/Renew", renew)
	s.wrote("the roles were read", `"changed":["team-a"]`)

	// A caller that is gone.
	reload("1 changed.*certificates were read", write(strings.ReplaceAll(string(good), roles.Credential(tokenA), roles.Credential("another"))))
	a.wants(http.StatusUnauthorized, tokenA, "Locks/Renew", renew)
	a.wants(http.StatusOK, "another", "Locks/Renew", renew) // the caller is the same
	reload("1 changed.*certificates were read", write(string(good)))

	// A CA that is not trusted any more, and a new certificate of the server.
	theirs.dir = ours.dir
	text, err := x509.CreateCertificate(rand.Reader, theirs.cert, theirs.cert, theirs.key.Public(), theirs.key)
	if err != nil {
		t.Fatal(err)
	}
	reload("certificates were read", func() {
		ours.write("ca.crt", "CERTIFICATE", text, 0o644)
		ours.server()
	})
	cart.wants(http.StatusUnauthorized, "", "Locks/Acquire", `{"key":"cart/y"}`) // on the open connection
	cart.http.CloseIdleConnections()
	cart.refusedTLS("the client of a CA that is not trusted any more")
	s.as(t, roots, theirs.client("cart.example", nil)).held("", `{"key":"cart/y"}`)

	// Files that others could have written.
	if err := os.Chmod(path, 0o666); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(key, 0o604); err != nil {
		t.Fatal(err)
	}
	reload("chmod go-w.*chmod o-r")
	a.wants(http.StatusOK, tokenA, "Locks/List", `{"prefix":"a/x"}`)
}
