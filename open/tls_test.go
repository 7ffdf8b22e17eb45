package open

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

// writeCertificate makes a certificate that is its own authority, for the
// name redis.internal.
func writeCertificate(t *testing.T, certFile, keyFile string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		NotAfter:              time.Now().Add(time.Hour),
		DNSNames:              []string{"redis.internal"},
		BasicConstraintsValid: true,
		IsCA:                  true,
		KeyUsage:              x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write(t, certFile, string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})))
	write(t, keyFile, string(pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: raw})))
}

func write(t *testing.T, file, text string) {
	t.Helper()
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestTLS(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key)
	other := filepath.Join(dir, "other.pem")
	writeCertificate(t, other, filepath.Join(dir, "other-key.pem"))
	addr := testserver.FreeAddr(t)
	_, port, err := net.SplitHostPort(addr)
	if err != nil {
		t.Fatal(err)
	}
	testserver.Redis(t, "--tls-port", port, "--tls-cert-file", cert, "--tls-key-file", key, "--tls-ca-cert-file", cert)

	for query, want := range map[string]string{
		"?ca=" + cert + "&server-name=redis.internal&cert=" + cert + "&key=" + key: "",
		"?insecure=true&cert=" + cert + "&key=" + key:                              "",
		"?ca=" + cert + "&verify=ca&cert=" + cert + "&key=" + key:                  "",
		"?ca=" + other + "&verify=ca&cert=" + cert + "&key=" + key:                 "authority",
		"?ca=" + cert + "&cert=" + cert + "&key=" + key:                            "verify=ca",   // the certificate is not for 127.0.0.1
		"?server-name=redis.internal&cert=" + cert + "&key=" + key:                 "authority",   // unknown
		"?ca=" + cert + "&server-name=redis.internal":                              "unavailable", // the server wants a client certificate, and may hang up before it says so
	} {
		store, err := Store(t.Context(), "rediss://"+addr+query)
		switch {
		case err == nil:
			store.Close()
			if want != "" {
				t.Errorf("%s: accepted", query)
			}
		case want == "":
			t.Errorf("%s: %v", query, err)
		case !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), want):
			t.Errorf("%s: error %v, want it unavailable and to contain %q", query, err, want)
		}
	}
	if store, err := Store(t.Context(), "redis://"+addr); err == nil {
		store.Close()
		t.Error("spoke to a TLS port without TLS")
	}
}
