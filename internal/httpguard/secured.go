package httpguard

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/batonhq/baton/internal/ownfile"
)

// maxPEM is the largest size of a file in PEM, in bytes.
const maxPEM = 1 << 20

// secured is the content of the files of TLS.
type secured struct {
	config  *tls.Config
	clients map[string]bool // the public keys of the authorities in ClientCA
}

// trusts reports whether a chain ends at an authority that is still in ClientCA.
func (s *secured) trusts(chains [][]*x509.Certificate) bool {
	for _, chain := range chains {
		if s.clients[string(chain[len(chain)-1].RawSubjectPublicKeyInfo)] {
			return true
		}
	}
	return false
}

// A FileError is about one of the files of a Config.
type FileError struct {
	Path string
	Err  error
}

func (e *FileError) Error() string { return fmt.Sprintf("%q: %v", e.Path, e.Err) }

func (e *FileError) Unwrap() error { return e.Err }

// Reload reads the certificate, its key and ClientCA again, for new connections. After an
// error the previous ones stay in use. Without TLS it does nothing.
func (d *Door) Reload() error {
	if d.cfg.Certificate == "" {
		return nil
	}
	s, err := d.read()
	if err != nil {
		return err
	}
	d.secured.Store(s)
	return nil
}

func (d *Door) read() (*secured, error) {
	certificate, err := ownfile.Read(d.cfg.Certificate, maxPEM, false)
	if err != nil {
		return nil, &FileError{d.cfg.Certificate, err}
	}
	key, err := ownfile.Read(d.cfg.Key, maxPEM, true)
	if err != nil {
		return nil, &FileError{d.cfg.Key, err}
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, &FileError{d.cfg.Certificate, err}
	}
	if end := pair.Leaf.NotAfter; time.Now().After(end) {
		return nil, &FileError{d.cfg.Certificate, fmt.Errorf("it has expired on %v", end.UTC().Format(time.DateTime))}
	}
	s := &secured{config: &tls.Config{
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"h2", "http/1.1"},
		Certificates: []tls.Certificate{pair},
		// Without this a resumed session could outlive the trust in the client's
		// authority.
		SessionTicketsDisabled: true,
	}}
	if d.cfg.ClientCA == "" {
		return s, nil
	}
	if err := d.readClients(s); err != nil {
		return nil, &FileError{d.cfg.ClientCA, err}
	}
	return s, nil
}

func (d *Door) readClients(s *secured) error {
	text, err := ownfile.Read(d.cfg.ClientCA, maxPEM, false)
	if err != nil {
		return err
	}
	s.clients = make(map[string]bool)
	s.config.ClientCAs = x509.NewCertPool()
	for block, rest := pem.Decode(text); block != nil; block, rest = pem.Decode(rest) {
		if block.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return err
		}
		s.clients[string(c.RawSubjectPublicKeyInfo)] = true
		s.config.ClientCAs.AddCert(c)
	}
	if len(s.clients) == 0 {
		return fmt.Errorf("it has no certificate in PEM")
	}
	s.config.ClientAuth = tls.RequireAndVerifyClientCert
	if d.cfg.Roles != nil {
		s.config.ClientAuth = tls.VerifyClientCertIfGiven
	}
	return nil
}
