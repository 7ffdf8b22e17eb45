package open

import (
	"context"
	"strings"
	"testing"
)

func TestRedact(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"memory:":                "memory:",
		"sqlite:locks.db":        "sqlite:locks.db",
		"sqlite:///a/b%20c.db":   "sqlite:///a/b%20c.db",
		"redis://h:1/2?prefix=a": "redis://h:1/2?prefix=a",
		"redis://u:p@h":          "redis://***@h",
		"redis://u@h":            "redis://***@h",
		"redis://@h":             "redis://***@h",
		"redis+sentinel://u:p@h1,[::1]:3/m/0?sentinel-password-file=/x&prefix=p&Token=t": "redis+sentinel://***@h1,[::1]:3/m/0?sentinel-password-file=***&prefix=p&Token=***",
		"redis://h?insecure":                              "redis://h?insecure",
		"redis://h?auth=s&PREFIX=s":                       "redis://h?auth=***&PREFIX=***",
		"postgres://h/d?sslmode=require&sslkey=/k&user=u": "postgres://h/d?sslmode=require&sslkey=***&user=***",
		"redis://h?PWD=a&my.Secret=b":                     "redis://h?PWD=***&my.Secret=***",
		"redis://u:p/q@h":                                 "redis:***",
		"redis://u:%zz@h":                                 "redis:***",
		"mysql://root:pw@h:3306/db":                       "mysql://***@h:3306/db",
		"mysql://root:pw@tcp(h)/db":                       "mysql:***",
		"root:pw@tcp(h:3306)/db":                          "***",
		"u:p@h":                                           "***",
		"locks.db":                                        "***",
		"":                                                "***",
	} {
		if got := Redact(url); got != want {
			t.Errorf("Redact(%q) = %q, want %q", url, got, want)
		}
		if got := Redact(Redact(url)); got != Redact(url) {
			t.Errorf("Redact twice of %q = %q, once %q", url, got, Redact(url))
		}
	}
}

// secret is not a substring of any message.
const secret = "xq7Zk9"

// FuzzRedact puts a secret where URLs have secrets, between any texts of the
// fuzzer, and looks for it in all messages about the URL. The context has ended, so
// no store is reached.
func FuzzRedact(f *testing.F) {
	for _, scheme := range []string{"redis", "rediss", "redis+sentinel", "redis+cluster", "redis+unix", "mysql", "sqlite", "memory", "zk", "etcd", "reds", ""} {
		f.Add(scheme, "u:", "", "h:6379/0", "password")
		f.Add(scheme, "", "/x", "h1,h2/m", "Sentinel-PassWord-file")
		f.Add(scheme, "a%", "?b=c", "[::1]/1?prefix=x", "pw")
		f.Add(scheme, "u:@", "#", "", "my_token")
		f.Add(scheme, "u@h/0?prefix=", "", "h", "client.secret")
	}
	ended, cancel := context.WithCancel(context.Background())
	cancel()
	f.Fuzz(func(t *testing.T, scheme, before, after, rest, name string) {
		if strings.Contains(scheme+before+after+rest+name, secret) || strings.ContainsAny(scheme, ":/?#&=@") || strings.ContainsAny(name, "&=") {
			return // the secret would be elsewhere
		}
		urls := []string{
			scheme + "://" + before + secret + after + "@" + rest,
			scheme + ":" + before + secret + after + "@" + rest,
		}
		if (param{name: name}).secret() && !strings.Contains(before+after, "&") {
			for _, first := range []string{"?", "?prefix=a&"} {
				urls = append(urls, scheme+"://h"+first+name+"="+before+secret+after+"&"+rest)
			}
		}
		for _, url := range urls {
			if s, rest, _ := split(url); opaque(s) && !strings.HasPrefix(rest, "//") {
				continue // there are no user names: what stands before the "@" is part of a path
			}
			if got := Redact(url); strings.Contains(got, secret) {
				t.Errorf("Redact(%q) = %q", url, got)
			}
			store, err := Store(ended, url)
			if err == nil {
				store.Close()
			} else if strings.Contains(err.Error(), secret) {
				t.Errorf("error about %q shows the secret: %v", url, err)
			}
		}
	})
}

// FuzzParse looks for panics, and for URLs that change when they are shown.
func FuzzParse(f *testing.F) {
	for _, url := range []string{"redis://h:1,[::1%eth0]:2,x/0?a=b&c", "sqlite:a?b", "a:", "redis://u:p@h/%41?x=%00"} {
		f.Add(url)
	}
	f.Fuzz(func(t *testing.T, url string) {
		a, err := parse(url)
		if err != nil {
			return
		}
		again, err := parse(a.String())
		if err != nil {
			t.Fatalf("parse(%q) = %q, which is refused: %v", url, a, err)
		}
		if again.String() != a.String() {
			t.Fatalf("parse(%q) shows as %q and then as %q", url, a, again)
		}
	})
}
