package remote

import (
	"net/netip"
	"strings"
	"testing"
)

func prefixes(s ...string) (out []netip.Prefix) {
	for _, p := range s {
		out = append(out, netip.MustParsePrefix(p))
	}
	return out
}

func trusting(t *testing.T, form Form, trusted ...string) *Addresses {
	t.Helper()
	a := &Addresses{V4: 32, V6: 64, Form: form, Trusted: prefixes(trusted...)}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	return a
}

// Which peer is believed about which caller. 10/8 and fd00::/8 are the trusted
// proxies; 192.0.2/24 is an attacker, 198.51.100/24 the victim.
func TestSpoofing(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, peer string
		form       Form
		lines      []string
		want       string
	}{
		{"nothing is believed", "192.0.2.1:9", NotForwarded, []string{"198.51.100.1"}, "192.0.2.1"},
		{"a proxy, and nothing is believed", "10.0.0.1:9", NotForwarded, []string{"198.51.100.1"}, "10.0.0.1"},
		{"a client, not a proxy", "192.0.2.1:9", XForwardedFor, []string{"198.51.100.1"}, "192.0.2.1"},
		{"a client that names a proxy", "192.0.2.1:9", XForwardedFor, []string{"198.51.100.1, 10.0.0.1"}, "192.0.2.1"},
		{"no header", "10.0.0.1:9", XForwardedFor, nil, "10.0.0.1"},
		{"one proxy", "10.0.0.1:9", XForwardedFor, []string{"192.0.2.1"}, "192.0.2.1"},
		{"the first hop is invented", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1, 192.0.2.1"}, "192.0.2.1"},
		{"the first hop is a proxy's", "10.0.0.1:9", XForwardedFor, []string{"10.0.0.9, 192.0.2.1"}, "192.0.2.1"},
		{"two proxies", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1, 192.0.2.1, 10.0.0.2"}, "192.0.2.1"},
		{"a line of its own", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1", "192.0.2.1"}, "192.0.2.1"},
		{"two lines, two proxies", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1, 192.0.2.1", "10.0.0.2"}, "192.0.2.1"},
		{"proxies all the way", "10.0.0.1:9", XForwardedFor, []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{"garbage in front", "10.0.0.1:9", XForwardedFor, []string{"a\"b;c,,, 192.0.2.1"}, "192.0.2.1"},
		{"garbage", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1, unknown"}, "10.0.0.1"},
		{"an empty end", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1,"}, "10.0.0.1"},
		{"an empty line", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1", ""}, "10.0.0.1"},
		{"garbage behind a proxy", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1, nobody, 10.0.0.2"}, "10.0.0.1"},
		{"a name", "10.0.0.1:9", XForwardedFor, []string{"localhost"}, "10.0.0.1"},
		{"octal", "10.0.0.1:9", XForwardedFor, []string{"0300.0.2.1"}, "10.0.0.1"},
		{"with port", "10.0.0.1:9", XForwardedFor, []string{"192.0.2.1:4711"}, "192.0.2.1"},
		{"IPv6", "[fd00::1]:9", XForwardedFor, []string{"198.51.100.1, 2001:db8:1:2:3:4:5:6"}, "2001:db8:1:2::/64"},
		{"IPv6 in brackets", "[fd00::1]:9", XForwardedFor, []string{"[2001:db8:1:2:3:4:5:6]"}, "2001:db8:1:2::/64"},
		{"IPv6 with port", "[fd00::1]:9", XForwardedFor, []string{"[2001:db8:1:2:3:4:5:6]:80"}, "2001:db8:1:2::/64"},
		{"IPv4 in brackets", "10.0.0.1:9", XForwardedFor, []string{"[192.0.2.1]"}, "10.0.0.1"},
		{"IPv4 in IPv6", "[::ffff:10.0.0.1]:9", XForwardedFor, []string{"::ffff:198.51.100.1, ::ffff:192.0.2.1, ::ffff:10.0.0.2"}, "192.0.2.1"},
		{"a zone does not hide a proxy", "[fd00::1%eth0]:9", XForwardedFor, []string{"192.0.2.1, fd00::2%x"}, "192.0.2.1"},
		{"within one /64", "[2001:db8::1]:9", NotForwarded, nil, "2001:db8::/64"},
		{"more hops than there are", "10.0.0.1:9", XForwardedFor, []string{"198.51.100.1" + strings.Repeat(",10.0.0.2", maxHops)}, "10.0.0.1"},
		{"the other header", "10.0.0.1:9", Forwarded, []string{"192.0.2.1"}, "10.0.0.1"},
		{"no address", "@", XForwardedFor, []string{"198.51.100.1"}, "unknown"},

		{"Forwarded", "10.0.0.1:9", Forwarded, []string{"for=198.51.100.1, for=192.0.2.1;proto=https;by=10.0.0.1"}, "192.0.2.1"},
		{"quoted", "10.0.0.1:9", Forwarded, []string{`for="198.51.100.1", For="192.0.2.1:80"`}, "192.0.2.1"},
		{"quoted IPv6", "10.0.0.1:9", Forwarded, []string{`proto=http;for="[2001:db8:1:2:3::4]:80" ; by="[fd00::1]"`}, "2001:db8:1:2::/64"},
		{"escaped", "10.0.0.1:9", Forwarded, []string{`for="192.\0.2.1"`}, "192.0.2.1"},
		{"an open quote in front", "10.0.0.1:9", Forwarded, []string{`for="198.51.100.1, for=192.0.2.1`}, "192.0.2.1"},
		{"a quote that closes in another element", "10.0.0.1:9", Forwarded, []string{`for=198.51.100.1;x=", for="192.0.2.1"`}, "192.0.2.1"},
		{"a backslash in front", "10.0.0.1:9", Forwarded, []string{`for="\, for="192.0.2.1"`}, "192.0.2.1"},
		{"a comma in a host", "10.0.0.1:9", Forwarded, []string{`for=192.0.2.1;host="a,for=198.51.100.1"`}, "192.0.2.1"},
		{"a semicolon in a host", "10.0.0.1:9", Forwarded, []string{`for=192.0.2.1;host="a;for=198.51.100.1"`}, "192.0.2.1"},
		{"a quote in a host", "10.0.0.1:9", Forwarded, []string{`for=192.0.2.1;host="a\",for=198.51.100.1"`}, "192.0.2.1"},
		{"two in one", "10.0.0.1:9", Forwarded, []string{"for=198.51.100.1;for=192.0.2.1"}, "10.0.0.1"},
		{"none in it", "10.0.0.1:9", Forwarded, []string{"for=198.51.100.1, proto=https"}, "10.0.0.1"},
		{"obfuscated", "10.0.0.1:9", Forwarded, []string{"for=198.51.100.1, for=_hidden"}, "10.0.0.1"},
		{"unknown", "10.0.0.1:9", Forwarded, []string{"for=198.51.100.1, for=unknown"}, "10.0.0.1"},
		{"two proxies", "10.0.0.1:9", Forwarded, []string{"for=198.51.100.1, for=192.0.2.1", `for="10.0.0.2:1"`}, "192.0.2.1"},
	} {
		a := trusting(t, c.form, "10.0.0.0/8", "fd00::/8")
		peer, _ := Node(c.peer)
		if got := a.Key(a.Of(peer, false, c.lines)); got != c.want {
			t.Errorf("%s: %q by %s is %s, want %s", c.name, c.lines, c.peer, got, c.want)
		}
	}
}

// A peer by a socket is believed only with TrustSocket, and only by a socket.
func TestSocket(t *testing.T) {
	t.Parallel()
	a := &Addresses{V4: 32, V6: 64, Form: XForwardedFor, Socket: true}
	if err := a.Check(); err != nil {
		t.Fatal(err)
	}
	lines := []string{"192.0.2.1"}
	for _, c := range []struct {
		peer   string
		socket bool
		want   string
	}{
		{"@", true, "192.0.2.1"}, {"", true, "192.0.2.1"}, {"garbage", false, "unknown"}, {"198.51.100.1:9", true, "198.51.100.1"},
	} {
		peer, _ := Node(c.peer)
		if got := a.Key(a.Of(peer, c.socket, lines)); got != c.want {
			t.Errorf("%q, by a socket: %v: %s, want %s", c.peer, c.socket, got, c.want)
		}
	}
}

func TestAddressesAreChecked(t *testing.T) {
	t.Parallel()
	for name, a := range map[string]Addresses{
		"no bits":         {V4: 0, V6: 64},
		"too many":        {V4: 32, V6: 129},
		"nobody":          {V4: 32, V6: 64, Form: Forwarded},
		"everybody":       {V4: 32, V6: 64, Form: Forwarded, Trusted: prefixes("0.0.0.0/0")},
		"everybody, v6":   {V4: 32, V6: 64, Form: Forwarded, Trusted: prefixes("::ffff:0.0.0.0/96")},
		"nothing":         {V4: 32, V6: 64, Form: Forwarded, Trusted: []netip.Prefix{{}}},
		"by which header": {V4: 32, V6: 64, Socket: true},
	} {
		if err := a.Check(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	a := trusting(t, XForwardedFor, "::ffff:10.1.2.3/104")
	if got := a.Trusted[0].String(); got != "10.0.0.0/8" {
		t.Errorf("IPv4 in IPv6 is %s", got)
	}
	for _, c := range []struct {
		v4, v6     int
		addr, want string
	}{
		{24, 64, "192.0.2.77", "192.0.2.0/24"},
		{32, 128, "2001:db8::77", "2001:db8::77"},
		{32, 48, "2001:db8:1:2::77", "2001:db8:1::/48"},
		{32, 64, "64:ff9b::192.0.2.77", "192.0.2.77"},
		{24, 64, "64:ff9b::192.0.2.77", "192.0.2.0/24"},
		{32, 64, "64:ff9b:0:0:1::1", "64:ff9b::/64"},
	} {
		a := Addresses{V4: c.v4, V6: c.v6}
		if got := a.Key(netip.MustParseAddr(c.addr)); got != c.want {
			t.Errorf("%s is %s, want %s", c.addr, got, c.want)
		}
	}
}

// Whatever a client writes in front, only what the proxy appended counts.
func FuzzForwarded(f *testing.F) {
	for _, s := range []string{"", "198.51.100.1", `for="`, `for="\`, `"\\",;=`, `for="a", for=10.0.0.2`, "\"\\\"\\\\\"", ",,,;;;", `x="\\\"`} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, front string) {
		peer := netip.MustParseAddr("10.0.0.1")
		x := trusting(t, XForwardedFor, "10.0.0.0/8")
		w := trusting(t, Forwarded, "10.0.0.0/8")
		for _, c := range []struct {
			a        *Addresses
			appended string
		}{
			{x, "192.0.2.1"},
			{x, "[2001:db8::1]:80, 10.0.0.9"},
			{w, "for=192.0.2.1;proto=http"},
			{w, `for="[2001:db8::1]:80";host="a,\"\\;b"`},
			{w, `FOR="192.0.2.1",for="10.0.0.9:1"`},
		} {
			want := c.a.Of(peer, false, []string{c.appended})
			if want == peer || c.a.trusts(want) {
				t.Fatalf("%q is %v", c.appended, want)
			}
			for _, lines := range [][]string{{front + ", " + c.appended}, {front, c.appended}} {
				if got := c.a.Of(peer, false, lines); got != want {
					t.Errorf("%q is %v, want %v", lines, got, want)
				}
			}
			// A header that a proxy forwards unchanged may say anything, but causes
			// no crash.
			if got := c.a.Of(peer, false, []string{front}); !got.IsValid() || got.Zone() != "" || got.Is4In6() {
				t.Errorf("%q is %v", front, got)
			}
			if got := c.a.Of(want, false, []string{front}); got != want {
				t.Errorf("a stranger is believed: %q is %v", front, got)
			}
		}
	})
}
