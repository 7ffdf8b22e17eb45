package open

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/store/redisstore"
)

func readRedis(t *testing.T, url string) (*redisTarget, error) {
	t.Helper()
	a, err := parse(url)
	if err != nil {
		return nil, err
	}
	return a.redis()
}

func TestRedisURLs(t *testing.T) {
	t.Parallel()
	type target struct {
		kind           redisKind
		addresses      string
		user, password string
		db             int
		prefix, master string
		tls            bool
	}
	for url, want := range map[string]target{
		"redis://":                         {addresses: "localhost:6379"},
		"redis://db1":                      {addresses: "db1:6379"},
		"REDIS://db1/":                     {addresses: "db1:6379"},
		"redis://db1:7000/3":               {addresses: "db1:7000", db: 3},
		"redis:///3":                       {addresses: "localhost:6379", db: 3},
		"redis://db1?db=4":                 {addresses: "db1:6379", db: 4},
		"redis://[::1]":                    {addresses: "[::1]:6379"},
		"redis://[fe80::1%eth0]:7000":      {addresses: "[fe80::1%eth0]:7000"},
		"redis://127.0.0.1:06379":          {addresses: "127.0.0.1:6379"},
		"redis://u:p@db1":                  {addresses: "db1:6379", user: "u", password: "p"},
		"redis://:p@db1":                   {addresses: "db1:6379", password: "p"},
		"redis://u@db1":                    {addresses: "db1:6379", user: "u"},
		"redis://u:p:q@db1":                {addresses: "db1:6379", user: "u", password: "p:q"},
		"redis://u:p@q@db1":                {addresses: "db1:6379", user: "u", password: "p@q"},
		"redis://u:a%2Fb%3Fc%40%25+%23@db": {addresses: "db:6379", user: "u", password: "a/b?c@%+#"},
		"redis://u:p#q@db1":                {addresses: "db1:6379", user: "u", password: "p#q"},
		"rediss://db1":                     {addresses: "db1:6379", tls: true},
		"redis://db1?prefix=a%26b/":        {addresses: "db1:6379", prefix: "a&b/"},

		"unix:///run/redis.sock?db=1":          {kind: redisSocket, addresses: "/run/redis.sock", db: 1},
		"redis+unix://u:p@/run/my%20r.sock":    {kind: redisSocket, addresses: "/run/my r.sock", user: "u", password: "p"},
		"redis+cluster://h1:7001,h2,[::1]:7":   {kind: redisCluster, addresses: "h1:7001 h2:6379 [::1]:7"},
		"rediss+cluster://h1":                  {kind: redisCluster, addresses: "h1:6379", tls: true},
		"redis+cluster://h1/0":                 {kind: redisCluster, addresses: "h1:6379"},
		"redis+sentinel://h1:1,h2/mymaster":    {kind: redisSentinel, addresses: "h1:1 h2:26379", master: "mymaster"},
		"redis+sentinel://u:p@h1/m/2?prefix=x": {kind: redisSentinel, addresses: "h1:26379", master: "m", db: 2, user: "u", password: "p", prefix: "x"},
		"rediss+sentinel://h1/m%2Fn":           {kind: redisSentinel, addresses: "h1:26379", master: "m", tls: true},
	} {
		if strings.Contains(url, "m%2Fn") {
			continue // a slash cannot be part of the name of a primary
		}
		got, err := readRedis(t, url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
			continue
		}
		flat := target{
			got.kind, strings.Join(got.addresses, " "), got.user, got.password, got.db,
			got.prefix, got.master, got.tls != nil,
		}
		if flat != want {
			t.Errorf("%s:\n got %+v\nwant %+v", url, flat, want)
		}
	}
}

// Behind Sentinel and in Cluster a lock waits for a replica unless the URL says otherwise.
func TestRedisURLsReplicas(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]redisstore.Replicas{
		"redis://h1":                           redisstore.NoReplicas,
		"redis://h1?replicas=auto":             redisstore.AutoReplicas,
		"redis://h1?replicas=2":                2,
		"redis+sentinel://h1/m":                redisstore.AutoReplicas,
		"redis+sentinel://h1/m?replicas=0":     redisstore.NoReplicas,
		"redis+sentinel://h1/m?replicas=all":   redisstore.AllReplicas,
		"redis+cluster://h1,h2":                redisstore.AutoReplicas,
		"redis+cluster://h1,h2?replicas=0":     redisstore.NoReplicas,
		"rediss+cluster://h1,h2?replicas=auto": redisstore.AutoReplicas,
	} {
		if got, err := readRedis(t, url); err != nil || got.replicas != want {
			t.Errorf("%s: %v, %v, want %v", url, got.replicas, err, want)
		}
	}
}

func TestRedisURLsRefused(t *testing.T) {
	t.Parallel()
	for url, want := range map[string]string{
		"redis:db1":                                  `"//" is missing`,
		"redis://h1,h2":                              "redis+cluster://",
		"redis://h1:0":                               "port is not a number",
		"redis://h1:65536":                           "port is not a number",
		"redis://h1:":                                "port is not a number",
		"redis://h1:x":                               "port is not a number",
		"redis://:6379":                              "no name",
		"redis://::1":                                "brackets",
		"redis://[::1":                               "brackets",
		"redis://[::1]x":                             "follows the brackets",
		"redis://[banana]":                           "not an IPv6 address",
		"redis://h1/zero":                            "number of a database",
		"redis://h1/-1":                              "number of a database",
		"redis://h1/1?db=2":                          "different databases",
		"redis://h1?db=x":                            "parameter db",
		"redis://h1/1/2":                             "number of a database",
		"redis://h 1":                                "host 1",
		"redis://h1#x":                               "host 1",
		"redis://h1/0#x":                             "%23",
		"redis://u:p%zz@h1":                          "%25",
		"redis://h1?prefix=%z":                       "%25",
		"redis://u:p/q@h1":                           "%2F",
		"redis://u:p?q@h1":                           "%3F",
		"redis://h1?prefx=a":                         "did you mean prefix?",
		"redis://h1?pasword-file=a":                  "did you mean password-file?",
		"redis://h1?colour=red":                      "unknown parameter colour: there are",
		"redis://h1?sentinel-user=x":                 "unknown parameter sentinel-user",
		"redis://h1?prefix=a&prefix=b":               "given twice",
		"redis://h1?=a":                              "no name",
		"redis://h1?a%62c=1":                         "no name",
		"redis://h1?connect-timeout=5":               "not a duration",
		"redis://h1?connect-timeout=-5s":             "not a duration",
		"redis://h1?allow-eviction=maybe":            "neither true nor false",
		"redis://h1?replicas=all":                    "say how many",
		"redis+cluster://h1?replicas=-1":             "neither all nor auto",
		"redlock://h1,h2,h3?replicas=1":              "unknown parameter replicas",
		"redis://h1?ca=/x":                           "need TLS",
		"redis://h1?insecure":                        "need TLS",
		"rediss://h1?cert=/x":                        "belong together",
		"rediss://h1?ca=/no/such/file":               "parameter ca",
		"redis://h1?prefix=a%0Ab":                    "parameter prefix",
		"redis+cluster://":                           "names no host",
		"redis+cluster://h1/3":                       "only database 0",
		"redis+cluster://h1?db=0":                    "unknown parameter db",
		"redis+cluster://h1,":                        "host 2: it has no name",
		"redis+sentinel://h1":                        "name of the primary is missing",
		"redis+sentinel://h1/m/x":                    "number of a database",
		"redis+unix://host/path":                     "three slashes",
		"unix://":                                    "three slashes",
		"unix:///s?insecure":                         "unknown parameter insecure",
		"redis://h1?password-env=BATON_UNSET_":       "not set",
		"redis://h1?password-file=/no/such":          "no such file",
		"redis://h1?password-file=/a&password-env=B": "both",
	} {
		got, err := readRedis(t, url)
		if err == nil {
			t.Errorf("%s: accepted as %+v", url, got)
		} else if !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %q, want it to contain %q", url, err, want)
		}
	}
}

func TestPasswordSources(t *testing.T) {
	t.Setenv("BATON_TEST_PASSWORD", "from-env")
	dir := t.TempDir()
	file := filepath.Join(dir, "password")
	write(t, file, "from file \r\n")
	empty := filepath.Join(dir, "empty")
	write(t, empty, "\n")

	for url, want := range map[string]string{
		"redis://h?password-env=BATON_TEST_PASSWORD":     "from-env",
		"redis://u@h?password-file=" + file:              "from file ",
		"redis+sentinel://h/m?password-file=" + file:     "from file ",
		"redis://u:in-url@h?prefix=a&connect-timeout=1s": "in-url",
	} {
		got, err := readRedis(t, url)
		if err != nil {
			t.Errorf("%s: %v", url, err)
		} else if got.password != want {
			t.Errorf("%s: password %q, want %q", url, got.password, want)
		}
	}
	got, err := readRedis(t, "redis+sentinel://u:data@h/m?sentinel-user=s&sentinel-password-env=BATON_TEST_PASSWORD")
	if err != nil || got.password != "data" || got.sentinelUser != "s" || got.sentinelPassword != "from-env" {
		t.Errorf("got %+v, %v: the Sentinels' password and the data servers' are not kept apart", got, err)
	}
	for url, want := range map[string]string{
		"redis://h?password-file=" + empty:               "empty",
		"redis://:p@h?password-env=BATON_TEST_PASSWORD":  "twice",
		"redis://h?password-file=" + file + ".not-there": "no such file",
	} {
		if _, err := readRedis(t, url); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want it to contain %q", url, err, want)
		} else if strings.Contains(err.Error(), dir) {
			t.Errorf("%s: the error shows a value that it should hide: %v", url, err)
		}
	}
}

func TestTLSParameters(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	writeCertificate(t, cert, key)

	got, err := readRedis(t, "rediss://h?ca="+cert+"&cert="+cert+"&key="+key+"&server-name=redis.internal")
	if err != nil {
		t.Fatal(err)
	}
	if got.tls.RootCAs == nil || len(got.tls.Certificates) != 1 || got.tls.ServerName != "redis.internal" || got.tls.InsecureSkipVerify {
		t.Errorf("TLS settings %+v do not say what the URL says", got.tls)
	}
	if got, err = readRedis(t, "rediss://h?insecure=true"); err != nil || !got.tls.InsecureSkipVerify {
		t.Errorf("insecure=true: %+v, %v", got, err)
	}
	if got, err = readRedis(t, "rediss://h?insecure=false"); err != nil || got.tls.InsecureSkipVerify {
		t.Errorf("insecure=false: %+v, %v", got, err)
	}
	noPEM := filepath.Join(dir, "no.pem")
	write(t, noPEM, "not a certificate")
	for _, url := range []string{"rediss://h?ca=" + noPEM, "rediss://h?cert=" + noPEM + "&key=" + key} {
		if _, err := readRedis(t, url); err == nil {
			t.Errorf("%s: accepted", url)
		}
	}
}

// A known name must not be rejected: the list of known names comes from what was
// read.
func TestEveryDocumentedParameterIsKnown(t *testing.T) {
	t.Parallel()
	for _, scheme := range []string{"redis://h?", "redis+cluster://h?", "redis+sentinel://h/m?"} {
		for _, name := range []string{"prefix", "password-file", "password-env", "connect-timeout", "allow-eviction", "replicas", "ca", "cert", "key", "server-name", "insecure"} {
			_, err := readRedis(t, scheme+name+"=x")
			if err != nil && strings.Contains(err.Error(), "unknown parameter") {
				t.Errorf("%s%s: %v", scheme, name, err)
			}
		}
	}
	a, err := parse("redis+sentinel://h/m")
	if err != nil {
		t.Fatal(err)
	}
	p := &params{given: a.params}
	p.password("sentinel-password")
	if !slices.Equal(p.asked, []string{"sentinel-password-file", "sentinel-password-env"}) {
		t.Errorf("asked for %v", p.asked)
	}
}
