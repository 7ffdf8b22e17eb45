package mysqlstore

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/testserver"
)

func examine(t *testing.T, s *Store) []string {
	t.Helper()
	all, err := s.Examine(t.Context())
	if err != nil {
		t.Fatalf("examine: %v", err)
	}
	var names []string
	for _, f := range all {
		if f.What == "" || f.Mend == "" || f.Severity < driver.Note || f.Severity > driver.Unsafe {
			t.Errorf("a finding without words: %+v", f)
		}
		names = append(names, f.Name)
	}
	slices.Sort(names)
	return names
}

func expect(t *testing.T, s *Store, what string, want ...string) {
	t.Helper()
	if got := examine(t, s); !slices.Equal(got, want) {
		t.Errorf("%s: found %q, want %q", what, got, want)
	}
}

// Each fault is planted in a real server, and nothing else is found.
func TestExamineFindsPlantedFaults(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	server := testserver.MariaDB(t, "--log-bin=binlog", "--sync-binlog=1", "--binlog-format=MIXED", "--innodb-doublewrite=OFF", "--max-connections=20")
	d := newDatabase(t, server)
	s := d.open(t)
	expect(t, s, "innodb_doublewrite off", "innodb_doublewrite")
	for _, c := range []struct{ plant, mend, want string }{
		{"SET GLOBAL innodb_flush_log_at_trx_commit=2", "SET GLOBAL innodb_flush_log_at_trx_commit=1", "innodb_flush_log_at_trx_commit"},
		{"SET GLOBAL sync_binlog=0", "SET GLOBAL sync_binlog=1", "sync_binlog"},
		{"SET GLOBAL binlog_format='STATEMENT'", "SET GLOBAL binlog_format='MIXED'", "binlog_format"},
		{"SET GLOBAL read_only=1", "SET GLOBAL read_only=0", "read_only"},
		{"SET GLOBAL innodb_deadlock_detect=OFF", "SET GLOBAL innodb_deadlock_detect=ON", "innodb_deadlock_detect"},
		{"SET GLOBAL max_allowed_packet=65536", "SET GLOBAL max_allowed_packet=16777216", "max_allowed_packet"},
		{"SET GLOBAL wait_timeout=10", "SET GLOBAL wait_timeout=600", "wait_timeout"},
		{"SET GLOBAL TRANSACTION ISOLATION LEVEL SERIALIZABLE", "SET GLOBAL TRANSACTION ISOLATION LEVEL REPEATABLE READ", "isolation"},
		{"ALTER TABLE baton_claim ENGINE=MyISAM", "ALTER TABLE baton_claim ENGINE=InnoDB", "engine"},
		{"ALTER TABLE baton_lock MODIFY k VARCHAR(512) NOT NULL", "ALTER TABLE baton_lock MODIFY k VARBINARY(512) NOT NULL", "schema"},
		{"ALTER TABLE baton_lock MODIFY ends DATETIME NOT NULL", "ALTER TABLE baton_lock MODIFY ends DATETIME(6) NOT NULL", "schema"},
		{"ALTER TABLE baton_claim DROP PRIMARY KEY, ADD PRIMARY KEY (k)", "ALTER TABLE baton_claim DROP PRIMARY KEY, ADD PRIMARY KEY (k,seq)", "schema"},
		{"ALTER TABLE baton_lock COMMENT='schema 0'", "ALTER TABLE baton_lock COMMENT='schema 1'", "schema"},
		{"RENAME TABLE baton_lock TO elsewhere", "RENAME TABLE elsewhere TO baton_lock", "schema"},
	} {
		d.exec(t, c.plant)
		want := []string{c.want, "innodb_doublewrite"}
		slices.Sort(want)
		expect(t, s, c.plant, want...)
		d.exec(t, c.mend)
	}
	expect(t, s, "all mended but one", "innodb_doublewrite")
	d.exec(t, "CREATE USER poor@'%'")
	for _, table := range tables {
		d.exec(t, "GRANT SELECT, INSERT, UPDATE, DELETE ON "+d.name+"."+table+" TO poor@'%'")
	}
	poor := d.openWith(t, func(c *Server, _ *options) { c.User = "poor" })
	expect(t, poor, "all rights that are needed", "innodb_doublewrite")
	d.exec(t, "REVOKE DELETE ON "+d.name+".baton_limit FROM poor@'%'")
	d.exec(t, "REVOKE INSERT ON "+d.name+".baton_lock FROM poor@'%'")
	expect(t, poor, "rights are missing", "innodb_doublewrite", "privileges", "privileges")
	for range 14 {
		c, err := d.plain.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
	}
	expect(t, s, "few connections left", "innodb_doublewrite", "max_connections")
}

func TestExamineFindsNothingOnASoundServer(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	d := newDatabase(t, testserver.MariaDB(t, "--log-bin=binlog", "--sync-binlog=1", "--binlog-format=ROW"))
	expect(t, d.open(t), "a sound server")
}

// What cannot be planted is told to the judge.
func TestJudge(t *testing.T) {
	t.Parallel()
	for name, v := range map[string]map[string]string{
		"galera":            {"wsrep_on": "on"},
		"group_replication": {"group_replication_group_name": "ce9b", "group_replication_single_primary_mode": "off"},
		"read_only":         {"super_read_only": "on"},
		"version":           {"version": "8.0.0"},
	} {
		if all := judge(v); len(all) != 1 || all[0].Name != name {
			t.Errorf("%v: found %+v", v, all)
		}
	}
	for version, old := range map[string]bool{
		"10.6.0-mariadb": false, "10.5.9-MariaDB-log": true, "5.5.5-10.4.1-MariaDB": true, "11.4.2-MariaDB": false, "10.11.19-mariadb-0+deb12u1": false,
		"8.0.1": false, "8.0.0-dmr": true, "5.7.44-log": true, "8.4.3": false, "9.1.0": false, "": false, "strange": false,
	} {
		if got := judgeVersion(version); (got != nil) != old {
			t.Errorf("%q: found %v, too old: %v", version, got, old)
		}
	}
}

// A server that is too old, and tables that are wrong, are refused.
func TestRefusals(t *testing.T) {
	testserver.NeedMariaDB(t)
	t.Parallel()
	if !testserver.IsMySQL(t) { // which does not lie about its version
		server := testserver.MariaDB(t, "--version=10.5.12-MariaDB-old")
		_, err := Open(t.Context(), Server{Addr: server.Addr, Database: "baton", User: "root"})
		refused, ok := errors.AsType[driver.Refusal](err)
		if !ok || !errors.Is(err, ErrVersion) {
			t.Fatalf("an old server: %v, want a refusal", err)
		}
		if f, ok := refused.Finding(); !ok || f.Name != "version" {
			t.Errorf("an old server: %+v", f)
		}
	}

	d := shared(t)
	d.wrap(t, d.config())
	d.exec(t, "ALTER TABLE baton_claim MODIFY id VARCHAR(64) NOT NULL")
	for _, err := range []error{Migrate(t.Context(), d.plain), second(New(t.Context(), d.plain)), second(Open(t.Context(), Server{Addr: d.server.Addr, Database: d.name, User: "root"}))} {
		if !errors.Is(err, ErrSchema) || !strings.Contains(fmt.Sprint(err), "baton_claim.id") {
			t.Errorf("a wrong column: %v", err)
		}
	}
	d = shared(t)
	d.wrap(t, d.config())
	d.exec(t, "ALTER TABLE baton_claim COMMENT 'baton waiters and shared holders, schema 2'")
	for _, err := range []error{Migrate(t.Context(), d.plain), second(New(t.Context(), d.plain))} {
		if !errors.Is(err, ErrSchema) || !strings.Contains(fmt.Sprint(err), "baton_claim is not of schema 1") {
			t.Errorf("a newer table: %v", err)
		}
	}
	d = shared(t)
	d.exec(t, "DROP TABLE baton_lock, baton_claim")
	if _, err := New(t.Context(), d.plain); !errors.Is(err, ErrSchema) {
		t.Errorf("without tables: %v", err)
	}
	c := d.config()
	c.Params = map[string]string{"autocommit": "0"}
	if _, err := New(t.Context(), pool(t, c)); !errors.Is(err, ErrAutocommit) {
		t.Errorf("without autocommit: %v", err)
	}
}

func second(_ *Store, err error) error { return err }
