package open

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/batonhq/baton/internal/suggest"
)

// params returns the parameters of a URL by name. It remembers the first error, and the
// names that were asked for, which are the known ones.
type params struct {
	given []param
	asked []string
	err   error
}

func (p *params) fail(format string, args ...any) {
	if p.err == nil {
		p.err = fmt.Errorf(format, args...)
	}
}

func (p *params) get(name string) (param, bool) {
	p.asked = append(p.asked, name)
	for _, g := range p.given {
		if g.name == name {
			return g, true
		}
	}
	return param{}, false
}

func (p *params) text(name string) string {
	g, _ := p.get(name)
	return g.value
}

// flag parses true or false. The name alone means true.
func (p *params) flag(name string) bool {
	g, ok := p.get(name)
	if !ok {
		return false
	}
	switch g.value {
	case "", "true", "1", "yes":
		return true
	case "false", "0", "no":
		return false
	}
	p.fail("parameter %s is neither true nor false", name)
	return false
}

func (p *params) duration(name string, standard time.Duration) time.Duration {
	g, ok := p.get(name)
	if !ok {
		return standard
	}
	d, err := time.ParseDuration(g.value)
	if err != nil || d <= 0 {
		p.fail("parameter %s is not a duration above zero, such as 500ms or 5s", name)
	}
	return d
}

// connectTimeout is the parameter connect-timeout for a store of the scheme. A session of
// ZooKeeper takes longer to begin.
func (p *params) connectTimeout(scheme string) time.Duration {
	standard := 5 * time.Second
	if scheme == "zk" {
		standard = 10 * time.Second
	}
	return p.duration("connect-timeout", standard)
}

func (p *params) number(name string, from, to int) (n int, ok bool) {
	g, ok := p.get(name)
	if !ok {
		return 0, false
	}
	n, err := strconv.Atoi(g.value)
	if err != nil || n < from || n > to {
		p.fail("parameter %s is not a number from %d to %d", name, from, to)
	}
	return n, true
}

// password reads a password from the file of the parameter name-file, or from the
// environment variable of name-env. Its errors quote neither.
func (p *params) password(name string) (password string, ok bool) {
	file, fromFile := p.get(name + "-file")
	env, fromEnv := p.get(name + "-env")
	switch {
	case fromFile && fromEnv:
		p.fail("both %s-file and %s-env are given", name, name)
	case fromFile:
		text, err := os.ReadFile(file.value)
		if err != nil {
			p.fail("parameter %s-file: %w", name, withoutPath(err))
		}
		password = strings.TrimSuffix(strings.TrimSuffix(string(text), "\n"), "\r")
		if err == nil && password == "" {
			p.fail("parameter %s-file: the file is empty", name)
		}
	case fromEnv:
		if password = os.Getenv(env.value); password == "" {
			p.fail("parameter %s-env: the environment variable is not set", name)
		}
	}
	return password, fromFile || fromEnv
}

// tls parses the parameters of TLS, and refuses them without secure. The server is
// verified unless insecure is set; with verify=ca its certificate may have any name.
func (p *params) tls(secure bool) *tls.Config {
	ca, cert, key, verify := p.text("ca"), p.text("cert"), p.text("key"), p.text("verify")
	c := &tls.Config{
		MinVersion:         tls.VersionTLS12,
		ServerName:         p.text("server-name"),
		InsecureSkipVerify: p.flag("insecure"),
	}
	if !secure {
		if ca != "" || cert != "" || key != "" || verify != "" || c.ServerName != "" || c.InsecureSkipVerify {
			p.fail("parameters ca, cert, key, verify, server-name and insecure need TLS: the scheme must begin with rediss or be etcds")
		}
		return nil
	}
	if ca != "" {
		text, err := os.ReadFile(ca)
		if err != nil {
			p.fail("parameter ca: %w", err)
		} else if c.RootCAs = x509.NewCertPool(); !c.RootCAs.AppendCertsFromPEM(text) {
			p.fail("parameter ca: %s has no certificate in PEM form", ca)
		}
	}
	switch {
	case verify != "" && verify != "ca":
		p.fail("parameter verify is not ca: without it the certificate's name is verified, too")
	case verify == "ca" && ca == "":
		p.fail("parameter verify=ca needs ca=FILE: all servers that a public authority knows would be accepted")
	case verify == "ca" && c.InsecureSkipVerify:
		p.fail("parameters verify and insecure contradict each other")
	case verify == "ca":
		c.InsecureSkipVerify, c.VerifyConnection = true, func(s tls.ConnectionState) error { return verifyChain(s, c.RootCAs) }
	}
	switch {
	case (cert == "") != (key == ""):
		p.fail("parameters cert and key belong together: one of them is missing")
	case cert != "":
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			p.fail("parameters cert and key: %w", err)
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c
}

// verifyChain verifies a server's certificate except its name.
func verifyChain(s tls.ConnectionState, roots *x509.CertPool) error {
	intermediates := x509.NewCertPool()
	for _, c := range s.PeerCertificates[1:] {
		intermediates.AddCert(c)
	}
	_, err := s.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: roots, Intermediates: intermediates})
	return err
}

// finish returns the first error, or one about an unknown parameter.
func (p *params) finish() error {
	if p.err != nil {
		return p.err
	}
	for _, g := range p.given {
		known := false
		for _, name := range p.asked {
			known = known || name == g.name
		}
		if known {
			continue
		}
		if near := suggest.Nearest(g.name, p.asked); near != "" {
			return fmt.Errorf("unknown parameter %s: did you mean %s?", g.name, near)
		}
		if len(p.asked) == 0 {
			return fmt.Errorf("unknown parameter %s: there are none here", g.name)
		}
		return fmt.Errorf("unknown parameter %s: there are %s", g.name, strings.Join(p.asked, ", "))
	}
	return nil
}

func withoutPath(err error) error {
	if pe, ok := errors.AsType[*fs.PathError](err); ok {
		return pe.Err
	}
	return err
}
