// Package envoyexamples has the configurations that envoyproxy/ratelimit publishes as examples, and their
// documented decisions. It is for tests.
package envoyexamples

import (
	"embed"
	"slices"
	"strings"
	"time"
)

// An Example is a configuration, and requests in order.
type Example struct {
	Name  string // of the file: "01-simple"
	Steps []Step
}

// A Step is a request that is made Times times.
type Step struct {
	After    time.Duration // since the first step
	Domain   string
	Describe string // its descriptors: "a=1,b=2 c=3" are two
	Times    int    // how often it is made

	// Want is each answer: "ok" or "refused"; "free" if no limit applies; "shadow" if only a
	// shadow limit refuses.
	Want string
}

// An Entry is a part of a descriptor.
type Entry struct{ Key, Value string }

// Descriptors reads descriptors from a text: "a=1,b=2 c=3" are two.
func Descriptors(text string) (all [][]Entry) {
	for one := range strings.FieldsSeq(text) {
		var d []Entry
		for entry := range strings.SplitSeq(one, ",") {
			key, value, _ := strings.Cut(entry, "=")
			d = append(d, Entry{key, value})
		}
		all = append(all, d)
	}
	return all
}

//go:embed testdata/*.yaml
var files embed.FS

// Config is the configuration of an example: "example" is that of the demonstration.
func Config(name string) []byte {
	text, err := files.ReadFile("testdata/" + name + ".yaml")
	if err != nil {
		panic(err) // it is embedded in the program
	}
	return text
}

// All are the examples of the documentation, and the demonstration.
func All() []Example {
	out := make([]Example, len(all))
	for i, e := range all {
		out[i] = Example{e.Name, slices.Clone(e.Steps)}
		for k := range e.Steps {
			if out[i].Steps[k].Domain == "" {
				out[i].Steps[k].Domain = out[i].Steps[k-1].Domain
			}
		}
	}
	return out
}

// A step without a domain has that of the previous step.
var all = []Example{
	{"01-simple", []Step{
		{0, "mongo_cps", "database=users", 500, "ok"},
		{0, "", "database=users", 1, "refused"},
		{0, "", "database=default", 500, "ok"},
		{0, "", "database=other", 1, "free"},
		{999 * time.Millisecond, "", "database=users", 1, "refused"},
		{time.Second, "", "database=users", 500, "ok"},
	}},
	{"02-nested", []Step{
		{0, "messaging", "message_type=marketing,to_number=2061111111", 5, "ok"},
		{0, "", "message_type=marketing,to_number=2061111111", 1, "refused"},
		{0, "", "message_type=marketing,to_number=2062222222", 5, "ok"},
		{0, "", "message_type=other,to_number=2061111111", 1, "free"},
		{0, "", "to_number=2061111111", 99, "ok"},
		{0, "", "message_type=marketing,to_number=2061111111 to_number=2061111111", 1, "refused"},
		{0, "", "to_number=2061111111", 1, "ok"}, // a refusal has taken nothing
		{0, "", "to_number=2061111111", 1, "refused"},
		{0, "", "message_type=marketing,to_number=2063333333 to_number=2063333333", 5, "ok"},
		{0, "", "message_type=marketing,to_number=2063333333 to_number=2063333333", 1, "refused"},
		{0, "", "to_number=2063333333", 95, "ok"},
		{0, "", "to_number=2063333333", 1, "refused"},
		{24 * time.Hour, "", "to_number=2063333333", 100, "ok"},
	}},
	{"03-specific", []Step{
		{0, "edge_proxy_per_ip", "remote_address=50.0.0.1", 10, "ok"},
		{0, "", "remote_address=50.0.0.1", 1, "refused"},
		{0, "", "remote_address=50.0.0.2", 10, "ok"},
		{0, "", "remote_address=50.0.0.5", 1, "refused"},
		{time.Hour, "", "remote_address=50.0.0.5", 1, "refused"},
	}},
	{"04-depth", []Step{
		{0, "example4", "key=value,subkey=subvalue", 301, "free"},
		{0, "", "key=value", 300, "ok"},
		{0, "", "key=value", 1, "refused"},
		{0, "example4_nested", "key=value,subkey=subvalue", 300, "ok"},
		{0, "", "key=value,subkey=subvalue", 1, "refused"},
		{0, "", "key=value,subkey=other", 300, "ok"},
		{0, "", "key=value", 301, "free"},
		{0, "", "key=other,subkey=subvalue", 301, "free"},
	}},
	{"05-unlimited", []Step{
		{0, "internal", "ldap=x", 200, "free"},
		{0, "", "azure=x", 100, "ok"},
		{0, "", "azure=x", 1, "refused"},
		{0, "", "azure=x ldap=x", 1, "refused"},
	}},
	{"06-shadow", []Step{
		{0, "example6", "service=auth-service,user=user-a", 10, "free"},
		{0, "", "service=auth-service,user=user-a", 10, "shadow"},
		{time.Second, "", "service=auth-service,user=user-a", 10, "free"},
		{0, "", "service=auth-service,user=user-b", 20, "ok"},
		{0, "", "service=auth-service,user=user-b", 1, "refused"},
	}},
	{"07-replaces", []Step{
		{0, "example7", "key_1=value_1,user=bkthomps key_2=value_2,user=bkthomps", 10, "ok"},
		{0, "", "key_1=value_1,user=bkthomps key_2=value_2,user=bkthomps", 1, "refused"},
		{0, "", "key_1=value_1,user=bkthomps", 5, "ok"},
		{0, "", "key_1=value_1,user=bkthomps", 1, "refused"},
		{time.Second, "", "key_2=value_2,user=bkthomps", 10, "ok"},
		{time.Second, "", "key_2=value_2,user=bkthomps", 1, "refused"},
	}},
	{"08-detailed", []Step{
		{0, "example8", "key1=unspecified", 10, "ok"},
		{0, "", "key1=unspecified", 1, "refused"},
		{0, "", "key1=unspecified2", 10, "ok"},
		{0, "", "key1=value1", 20, "ok"},
		{0, "", "key1=value1", 1, "refused"},
	}},
	{"09-wildcard", []Step{
		{0, "example9", "key1=value1", 20, "ok"},
		{0, "", "key1=value1", 1, "refused"},
		{0, "", "key1=valueXYZ", 20, "ok"},
		{0, "", "key1=value", 20, "ok"},
		{0, "", "key1=valu", 21, "free"},
		{0, "", "path=/api/123/action", 20, "ok"},
		{0, "", "path=/api/123/action", 1, "refused"},
		{0, "", "path=/api/user-id/action", 20, "ok"},
		{0, "", "path=/api/123/other", 21, "free"},
		{0, "", "route=/api/v1/resource/123/action", 20, "ok"},
		{0, "", "route=/api/v1/resource/123/action", 1, "refused"},
		{0, "", "route=/api/v2/resource/456/action", 20, "ok"},
		{0, "", "route=/api/v2/456/action", 21, "free"},
	}},
	{"10-value-to-metric", []Step{
		{0, "example10", "route=api,http_method=GET,subject_id=123", 60, "ok"},
		{0, "", "route=api,http_method=GET,subject_id=123", 1, "refused"},
		{0, "", "route=web,http_method=POST,subject_id=456", 60, "ok"},
		{0, "", "route=web,http_method=POST,subject_id=123", 60, "ok"},
		{0, "example10_wildcard", "user=alice,action=readfile,resource=documents", 100, "ok"},
		{0, "", "user=alice,action=readfile,resource=documents", 1, "refused"},
		{0, "", "user=alice,action=write,resource=documents", 101, "free"},
	}},
	{"11-share", []Step{
		{0, "example11", "files=files/a.pdf", 5, "ok"},
		{0, "", "files=files/b.csv", 5, "ok"},
		{0, "", "files=files/c.txt", 1, "refused"},
		{0, "", "files=files/*", 1, "refused"},
		{0, "", "files_no_share=files_no_share/a.pdf", 10, "ok"},
		{0, "", "files_no_share=files_no_share/a.pdf", 1, "refused"},
		{0, "", "files_no_share=files_no_share/b.csv", 10, "ok"},
		{0, "example11_metrics", "route=api/v1,method=GET", 30, "ok"},
		{0, "", "route=api/v2,method=GET", 30, "ok"},
		{0, "", "route=api/v3,method=GET", 1, "refused"},
		{0, "", "route=api/v3,method=POST", 60, "ok"},
	}},
	{"example", []Step{
		{0, "rl", "foo=bkthomps,bar=banned", 1, "refused"},
		{0, "", "foo=bkthomps,bar=banned source_cluster=proxy,destination_cluster=mock", 1, "refused"},
		{0, "", "foo=bkthomps,bar=banned source_cluster=proxy,destination_cluster=override", 2, "ok"},
		{0, "", "foo=bkthomps,bar=banned source_cluster=proxy,destination_cluster=override", 1, "refused"},
		{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=bkthomps", 2, "ok"},
		{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=bkthomps", 1, "refused"},
		{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=not_bkthomps", 1, "ok"},
		{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=not_bkthomps", 1, "refused"},
		{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=fake category=account", 4, "ok"},
		{0, "", "foo=my_foo,bar=bkthomps source_cluster=proxy,destination_cluster=fake category=account", 1, "refused"},
		{0, "", "foo=foo_2,bar=bkthomps", 1, "ok"},
		{0, "", "foo=foo_2,bar=bkthomps", 1, "refused"},
		{0, "", "foo=foo_3,bar=bar_3 source_cluster=proxy,destination_cluster=fake", 2, "ok"},
		{0, "", "foo=foo_3,bar=bar_3 source_cluster=proxy,destination_cluster=fake", 1, "refused"},
		{0, "", "foo=pelle,baz=not-so-shady", 3, "ok"},
		{0, "", "foo=pelle,baz=not-so-shady", 1, "refused"},
		{0, "", "foo=pelle,baz=shady", 3, "free"},
		{0, "", "foo=pelle,baz=shady", 3, "shadow"},
		{0, "", "foo=pelle,bay=x", 50, "free"},
		{0, "", "unspec=x", 2, "ok"},
		{0, "", "unspec=x", 1, "refused"},
		{0, "", "unspec=y", 2, "ok"},
		// Two pools: one, then two.
		{0, "", "service=service_1 service=service_2", 2, "ok"},
		{0, "", "service=service_1 service=service_2", 1, "refused"},
		{time.Minute, "", "service=service_1", 1, "ok"},
		{time.Minute, "", "service=service_1", 1, "refused"},
		{time.Minute, "", "service=service_1 service=service_2", 2, "ok"},
		{time.Minute, "", "service=service_1 service=service_2", 1, "refused"},
	}},
}
