package etcdstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/faultproxy"
	"github.com/batonhq/baton/internal/testserver"
)

// found examines and returns the findings by name.
func found(t *testing.T, s *Store) map[string]driver.Finding {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	all, err := s.Examine(ctx)
	if err != nil {
		t.Errorf("examine: %v", err)
	}
	byName := map[string]driver.Finding{}
	for _, f := range all {
		if f.What == "" || f.Mend == "" {
			t.Errorf("a finding without words: %+v", f)
		}
		byName[f.Name] = f
	}
	return byName
}

func mustFind(t *testing.T, all map[string]driver.Finding, name string, severity driver.Severity) {
	t.Helper()
	if f, ok := all[name]; !ok || f.Severity != severity {
		t.Errorf("found %v, want %s, %v", all, name, severity)
	}
}

func TestExamineASoundCluster(t *testing.T) {
	t.Parallel()
	s := mustNew(t, dial(t, testserver.SharedEtcdThree(t).Addrs()...), Config{Prefix: prefixOf(t)})
	for name, f := range found(t, s) {
		if f.Severity != driver.Note && name != "round-trip" { // which the machine decides
			t.Errorf("in a sound cluster: %+v", f)
		}
	}
}

func TestExamineASingleMember(t *testing.T) {
	t.Parallel()
	all := found(t, openOn(t, testserver.SharedEtcd(t), 1)[0])
	mustFind(t, all, "single-member", driver.Note)
	mustFind(t, all, "auth", driver.Note)
}

func TestExamineAnEvenCluster(t *testing.T) {
	t.Parallel()
	cluster := testserver.EtcdMembers(t, 2)
	s := mustNew(t, dial(t, cluster.Addrs()...))
	mustFind(t, found(t, s), "even-members", driver.Note)

	// And when one of the two is gone, there is no leader.
	cluster.Members[0].Kill()
	eventually(t, "the member notices", 30*time.Second, func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
		defer cancel()
		all, err := s.Examine(ctx)
		has := func(name string) bool {
			return slices.ContainsFunc(all, func(f driver.Finding) bool { return f.Name == name })
		}
		return err != nil && has("no-leader") && has("endpoint-unreachable")
	})
}

func TestExamineALearner(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	learner := testserver.EtcdLearner(t, server)
	s := mustNew(t, dial(t, server.Addr))
	s.client.SetEndpoints(server.Addr, learner.Addr)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	all := map[string]driver.Finding{}
	for _, f := range s.examineEndpoints(ctx) {
		all[f.Name] = f
	}
	mustFind(t, all, "learner", driver.Unsafe)
}

func TestExamineTwoClusters(t *testing.T) {
	t.Parallel()
	a, b := testserver.SharedEtcd(t), testserver.Etcd(t)
	mustFind(t, found(t, mustNew(t, dial(t, a.Addr, b.Addr))), "clusters", driver.Unsafe)
}

func TestExamineAFullServer(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--quota-backend-bytes=4194304")
	s := openOn(t, server, 1)[0]
	fill(t, s)
	mustFind(t, found(t, s), "nospace", driver.Unsafe)
}

func TestExamineALongElection(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t, "--heartbeat-interval=400", "--election-timeout=4000")
	all := found(t, openOn(t, server, 1)[0])
	mustFind(t, all, "lease-floor", driver.Slow)
	if !strings.Contains(all["lease-floor"].What, "6 s") {
		t.Error(all["lease-floor"].What)
	}
}

func TestExamineRevisions(t *testing.T) {
	t.Parallel()
	server := testserver.Etcd(t)
	s := openOn(t, server, 1)[0]
	for i := range 30 {
		if _, err := s.client.Put(t.Context(), "x", fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	tell := func(want bool) {
		t.Helper()
		all, err := s.examine(t.Context(), 20)
		if err != nil {
			t.Error(err)
		}
		if got := slices.ContainsFunc(all, func(f driver.Finding) bool { return f.Name == "compaction" }); got != want {
			t.Errorf("found %v, about compaction: %v, want %v", all, got, want)
		}
	}
	tell(true)
	if _, err := s.client.Compact(t.Context(), names(t, s, "x").Header.Revision); err != nil {
		t.Fatal(err)
	}
	tell(false)
}

func TestExamineAFarServer(t *testing.T) {
	t.Parallel()
	proxy := faultproxy.New(t, testserver.SharedEtcd(t).Addr)
	s := mustNew(t, dial(t, proxy.Addr))
	proxy.Delay(faultproxy.ToClient, 60*time.Millisecond)
	mustFind(t, found(t, s), "round-trip", driver.Slow)
}

func TestExamineAGoneServer(t *testing.T) {
	t.Parallel()
	testserver.NeedEtcd(t)
	s := mustNew(t, dial(t, testserver.FreeAddr(t)))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	all, err := s.Examine(ctx)
	if err == nil || len(all) == 0 || all[0].Name != "endpoint-unreachable" {
		t.Errorf("%v, %v", all, err)
	}
}

func TestExamineVersions(t *testing.T) {
	t.Parallel()
	for v, want := range map[string]driver.Severity{
		"3.3.27": driver.Unsafe, "3.4.23": driver.Unsafe, "3.4.30": driver.Unsafe, "3.4.31": driver.Note, "3.5.2": driver.Unsafe, "3.5.0-rc.1": driver.Unsafe,
		"3.5.3": driver.Unsafe, "3.5.12": driver.Unsafe, "3.5.13": 255, "3.6.16": 255, "3.7.3": 255, "4.0.0": 255, "": 255, "unknown": 255,
	} {
		all := judgeVersion("a", v)
		if (all != nil) != (want != 255) || all != nil && all[0].Severity != want {
			t.Errorf("%q: %+v", v, all)
		}
	}
}

func TestExamineWhatOnlyTheServerCanSay(t *testing.T) {
	t.Parallel()
	if all := judgeAlarms([]*pb.AlarmMember{{Alarm: pb.AlarmType_CORRUPT}, {Alarm: pb.AlarmType_CORRUPT}}); len(all) != 1 || all[0].Name != "corrupt" {
		t.Errorf("two members with one alarm: %v", all)
	}
	// Servers before 3.6 do not tell their quota.
	for used, want := range map[int64]int{79: 0, 81: 1} {
		all := judgeStatus("a", &pb.StatusResponse{Version: "3.6.0", Leader: 1, DbSize: used, DbSizeQuota: 100})
		if len(all) != want || want == 1 && (all[0].Name != "quota" || all[0].Severity != driver.Unsafe) {
			t.Errorf("%d of 100 used: %v", used, all)
		}
	}
}
