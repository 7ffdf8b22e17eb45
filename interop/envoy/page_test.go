package envoy

import (
	"encoding/json"
	"os"
	"testing"

	cluster "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ratelimit/v3"
	manager "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"github.com/goccy/go-yaml"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/batonhq/baton/internal/pagecode"
	"github.com/batonhq/baton/internal/testserver"
)

// The configuration of Envoy on docs/proxies.md has the fields that Envoy knows, with
// values that it accepts.
func TestPage(t *testing.T) {
	testserver.Long(t)
	t.Parallel()
	page, err := os.ReadFile("../../docs/proxies.md")
	if err != nil {
		t.Fatal(err)
	}
	for mark, inner := range map[string]int{"envoy": 2, "envoy-tls": 3} {
		t.Run(mark, func(t *testing.T) { testConfiguration(t, string(page), mark, inner) })
	}
}

// testConfiguration tries a block of a page, with that many messages within others.
func testConfiguration(t *testing.T, page, mark string, messages int) {
	text, found := pagecode.Marked(page, mark)
	config, err := yaml.YAMLToJSON([]byte(text))
	if err != nil || !found {
		t.Fatal(found, err)
	}
	var parts struct {
		Filters  []json.RawMessage `json:"http_filters"`
		Clusters []json.RawMessage `json:"clusters"`
	}
	if err := json.Unmarshal(config, &parts); err != nil || len(parts.Filters) != 1 || len(parts.Clusters) != 1 {
		t.Fatalf("%d filters, %d clusters, %v", len(parts.Filters), len(parts.Clusters), err)
	}
	filter, backend := new(manager.HttpFilter), new(cluster.Cluster)
	for text, into := range map[*json.RawMessage]proto.Message{&parts.Filters[0]: filter, &parts.Clusters[0]: backend} {
		if err := protojson.Unmarshal(*text, into); err != nil {
			t.Fatal(err)
		}
		valid(t, into)
	}
	inner := []*anypb.Any{filter.GetTypedConfig()}
	for _, options := range backend.GetTypedExtensionProtocolOptions() {
		inner = append(inner, options)
	}
	if socket := backend.GetTransportSocket(); socket != nil {
		inner = append(inner, socket.GetTypedConfig())
	}
	if len(inner) != messages {
		t.Errorf("%d messages within", len(inner))
	}
	for _, one := range inner {
		message, err := one.UnmarshalNew()
		if err != nil {
			t.Fatal(err)
		}
		valid(t, message)
	}
}

// valid asks a message whether Envoy accepts its values.
func valid(t *testing.T, message proto.Message) {
	t.Helper()
	checks, ok := message.(interface{ ValidateAll() error })
	if !ok {
		t.Fatalf("%T has no rules for its values", message)
	}
	if err := checks.ValidateAll(); err != nil {
		t.Error(err)
	}
}
