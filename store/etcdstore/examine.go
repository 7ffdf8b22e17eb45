package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
)

// Thresholds of findings.
const (
	nearlyFull    = 0.8                   // of the quota
	longRoundTrip = 50 * time.Millisecond // of a read that asks the leader
	manyRevisions = 1_000_000             // without a compaction
	endpointTime  = 2 * time.Second       // for one member's answers about itself
)

// Examine implements driver.Examiner. It asks for a lease and revokes it, to learn how
// short a lease may be; it does not touch locks or data.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	return s.examine(ctx, manyRevisions)
}

func (s *Store) examine(ctx context.Context, many int64) ([]driver.Finding, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	var all findings.Table
	var errs []error
	ask := func(what string, f func() error) {
		if err := f(); err != nil && !notTold(err) {
			errs = append(errs, fmt.Errorf("%s: %w", what, readFailure(ctx, err)))
		}
	}
	all = append(all, s.examineEndpoints(ctx)...)
	ask("members", func() error {
		resp, err := s.client.MemberList(ctx)
		if err == nil {
			all = append(all, judgeMembers(resp.Members)...)
		}
		return err
	})
	ask("alarms", func() error {
		resp, err := s.client.AlarmList(ctx)
		if err == nil {
			all = append(all, judgeAlarms(resp.Alarms)...)
		}
		return err
	})
	ask("leases", func() error { return s.examineLeases(ctx, &all) })
	ask("revisions", func() error { return s.examineRevisions(ctx, many, &all) })
	ask("round trip", func() error { return s.examineRoundTrip(ctx, &all) })
	ask("authentication", func() error {
		resp, err := s.client.AuthStatus(ctx)
		all.Say(err == nil && !resp.Enabled, "auth", driver.Note,
			"etcdctl user add root, then etcdctl auth enable, and a role that may read and write "+strconv.Quote(s.prefix)+" alone",
			"the servers ask for no password: any client that reaches them can take and break locks, and read their IDs")
		return err
	})
	c := s.server
	all.Say(c != nil && c.TLS == nil && !findings.Local(c.Endpoints...), "tls", driver.Note, "give the servers certificates and write etcds://",
		"the connections are not encrypted: an attacker on the network can read the password and take or break locks")
	return all, errors.Join(errs...)
}

// notTold reports whether the server works but denies the question, or does not know it.
func notTold(err error) bool {
	if errors.Is(rpctypes.Error(err), rpctypes.ErrPermissionDenied) {
		return true
	}
	st, ok := status.FromError(err)
	return ok && (st.Code() == codes.Unimplemented || st.Code() == codes.PermissionDenied)
}

func (s *Store) examineEndpoints(ctx context.Context) (all findings.Table) {
	endpoints := s.client.Endpoints()
	answers := make([]*clientv3.StatusResponse, len(endpoints))
	errs := make([]error, len(endpoints))
	var work sync.WaitGroup
	for i, e := range endpoints {
		work.Go(func() {
			ctx, cancel := context.WithTimeout(ctx, endpointTime)
			defer cancel()
			answers[i], errs[i] = s.client.Status(ctx, e)
		})
	}
	work.Wait()
	clusters := map[uint64]bool{}
	for i, err := range errs {
		all.Say(err != nil && !notTold(err), "endpoint-unreachable", driver.Slow, "start that member again, or take it out of the URL",
			"endpoint %s does not answer: requests that try it first take longer, and there is one less to fall back to", endpoints[i])
		if err == nil {
			clusters[answers[i].Header.ClusterId] = true
			all = append(all, judgeStatus(endpoints[i], (*pb.StatusResponse)(answers[i]))...)
		}
	}
	all.Say(len(clusters) > 1, "clusters", driver.Unsafe, "name the members of one cluster only",
		"the endpoints belong to %d different clusters, each of which grants the same lock", len(clusters))
	return all
}

// judgeStatus judges a member's status.
func judgeStatus(at string, st *pb.StatusResponse) findings.Table {
	all := judgeVersion(at, st.Version)
	all.Say(st.Leader == 0, "no-leader", driver.Unsafe, "bring back a majority of the members, and look at the network between them",
		"member %s has no leader: it grants, renews and releases nothing", at)
	all.Say(st.IsLearner, "learner", driver.Unsafe, "take it out of the URL, or etcdctl member promote it",
		"endpoint %s is a learner, which refuses most requests", at)
	all.Say(st.DbSizeQuota > 0 && float64(st.DbSize) > nearlyFull*float64(st.DbSizeQuota), "quota", driver.Unsafe,
		"compact and defragment (etcdctl compact, etcdctl defrag), set --auto-compaction-retention, or raise --quota-backend-bytes",
		"member %s has used %d of %d MB: when the rest is gone, nothing is granted", at, st.DbSize>>20, st.DbSizeQuota>>20)
	return all
}

func judgeVersion(at, v string) (all findings.Table) {
	older := func(than ...int) bool { return findings.Older(v, than...) }
	say := func(severity driver.Severity, mend, what string) {
		all.Say(true, "version", severity, mend, "member %s is version %s, %s", at, v, what)
	}
	const maintained = "upgrade to a version that is maintained"
	switch {
	case older(3, 4):
		say(driver.Unsafe, maintained, "at least 3.4 is needed")
	case !older(3, 5) && older(3, 5, 3):
		say(driver.Unsafe, "upgrade to the latest 3.5, or to a later version", "which can lose or mix up data when it is killed")
	case older(3, 4, 31), !older(3, 5) && older(3, 5, 13):
		// https://github.com/etcd-io/etcd/issues/15247; 3.6 never had it.
		say(driver.Unsafe, "upgrade to 3.5.13 or later, or to 3.4.31 or later",
			"which can end all leases, and so give locks away that are held, when its disk has hung")
	case older(3, 5):
		say(driver.Note, maintained, "which gets no corrections any more")
	}
	return all
}

func judgeMembers(members []*pb.Member) (all findings.Table) {
	voters := 0
	for _, m := range members {
		if !m.IsLearner {
			voters++
		}
	}
	all.Say(voters == 1, "single-member", driver.Note, "add members until there are three",
		"the cluster has one member: while that is down, nothing is granted")
	all.Say(voters%2 == 0, "even-members", driver.Note, "add a member, or remove one",
		"the cluster has %d members: it survives the loss of no more of them than with %d, and is slower", voters, voters-1)
	return all
}

func judgeAlarms(alarms []*pb.AlarmMember) (all findings.Table) {
	raised := func(alarm pb.AlarmType) bool {
		return slices.ContainsFunc(alarms, func(a *pb.AlarmMember) bool { return a.Alarm == alarm })
	}
	all.Say(raised(pb.AlarmType_NOSPACE), "nospace", driver.Unsafe, "etcdctl compact, etcdctl defrag, then etcdctl alarm disarm; set --auto-compaction-retention",
		"the alarm NOSPACE is raised: nothing is granted")
	all.Say(raised(pb.AlarmType_CORRUPT), "corrupt", driver.Unsafe, "replace the member that is wrong; see etcd's guide to disaster recovery",
		"the alarm CORRUPT is raised: the members do not agree on what is stored")
	return all
}

// examineLeases asks for a short lease, to find the shortest one.
func (s *Store) examineLeases(ctx context.Context, all *findings.Table) error {
	resp, err := s.leaser.LeaseGrant(ctx, &pb.LeaseGrantRequest{TTL: waiterSeconds})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrNoSpace) {
		return nil // examine reports the alarm
	}
	if err != nil {
		return err
	}
	// If this fails the lease ends by itself.
	_, _ = s.leaser.LeaseRevoke(ctx, &pb.LeaseRevokeRequest{ID: resp.ID})
	all.Say(resp.TTL > waiterSeconds, "lease-floor", driver.Slow, "lower --election-timeout: the shortest lease is one and a half of it",
		"the servers give no lease of less than %d s: a process that died keeps others waiting for that long, whatever its TTL", resp.TTL)
	return nil
}

// examineRevisions checks whether an old revision still exists.
func (s *Store) examineRevisions(ctx context.Context, many int64, all *findings.Table) error {
	head, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.dir("?"))})
	if err != nil {
		return err
	}
	old := head.Header.Revision - many
	if old < 1 {
		return nil
	}
	_, err = s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.dir("?")), Revision: old})
	if errors.Is(rpctypes.Error(err), rpctypes.ErrCompacted) {
		return nil
	}
	all.Say(err == nil, "compaction", driver.Slow, "start the servers with --auto-compaction-mode=periodic --auto-compaction-retention=1h",
		"the last %d revisions were never compacted: every lock adds two, until the quota is used up", many)
	return err
}

// examineRoundTrip takes the fastest of a few reads.
func (s *Store) examineRoundTrip(ctx context.Context, all *findings.Table) error {
	best := time.Hour
	for range 5 {
		start := time.Now()
		if _, err := s.kv.Range(ctx, &pb.RangeRequest{Key: []byte(s.dir("?"))}); err != nil {
			return err
		}
		best = min(best, time.Since(start))
	}
	all.Say(best >= longRoundTrip, "round-trip", driver.Slow, "run the program near the leader, and the members near each other",
		"a read takes %v at best: the servers are far away from here, or from each other", best.Round(time.Millisecond))
	return nil
}
