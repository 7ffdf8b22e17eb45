package main

import "github.com/spf13/cobra"

// topics are the pages of the manual that describe no command.
func topics() []*cobra.Command {
	return []*cobra.Command{{
		Use:   "stores",
		Short: "How a store is named",
		Long: `A store is named by a URL, in --store (-b) or BATON_STORE. Without one it is a SQLite
file in the user's state directory, $XDG_STATE_HOME/baton/locks.db or
~/.local/state/baton/locks.db: locks between the programs of one user on one machine.

  sqlite:locks.db                         a file, shared by the processes of one machine
  sqlite:///var/lib/baton/locks.db        the same with an absolute path
  redis://user:password@host:6379/0       one Redis server; rediss:// speaks TLS
  redis+unix:///run/redis.sock?db=0       the same by Unix socket; also unix://
  redis+sentinel://h1,h2,h3/mymaster/0    the primary that Sentinels know; also rediss+sentinel://
  redis+cluster://h1:7001,h2:7002         a Redis Cluster; also rediss+cluster://
  redlock://h1,h2,h3                      a majority of independent Redis servers; redlocks:// speaks TLS
  mysql://user:password@host:3306/db      MySQL or MariaDB; also mariadb://
  postgres://user:password@host:5432/db   PostgreSQL; also postgresql://
  zk://h1,h2,h3/locks                     ZooKeeper; each lock is a node below /locks
  etcd://user:password@h1,h2,h3/prefix    etcd; etcds:// speaks TLS
  memory:                                 this process only: for trying things out

Passwords do not have to stand in the URL, where other users of the machine may see
them: ?password-file=PATH and ?password-env=NAME name a file or an environment
variable that has it. In the URL write %40 for "@", %2F for "/", %3F for "?", %23 for
"#", %25 for "%" wherever they are not meant as separators.

Parameters of Redis, after "?" and separated by "&":

  prefix=TEXT             put before every key
  password-file, password-env, sentinel-user, sentinel-password-file, sentinel-password-env
  connect-timeout=5s      how long opening the store may take; a connection that is made
                          later is given up after a second without an answer, or more
                          where answers take long
  allow-eviction=true     accept a server that may evict locks when its memory is full
  replicas=all            a lock counts when every replica knows of it that Sentinel or
                          Cluster could promote (N: when N do; auto: one, if any is there,
                          which is the default with both)
  ca=FILE cert=FILE key=FILE server-name=NAME    for TLS
  verify=ca               with ca=FILE: whatever name the server's certificate has, as those
                          that MySQL makes itself have none
  insecure=true           do not verify the server's certificate: never in production

Redlock knows them but replicas, too, for all its servers, and

  longest-ttl=1m          no lock may have a longer TTL; a server that restarted does not
                          vote for that time, as it may have forgotten one
  durable=true            the servers forget nothing (appendfsync always): they vote at once
  allow-replicas=true     accept servers that have replicas

Parameters of MySQL and MariaDB:

  password-file, password-env, connect-timeout=5s
  connections=36          how many there may be at a time
  tls=true                speak TLS; ca, cert, key, server-name, verify, insecure as above

Parameters of PostgreSQL:

  password-file, password-env, connect-timeout    as above
  sslmode, sslrootcert, sslcert, sslkey           as in other PostgreSQL clients
  host=/DIRECTORY         of a Unix socket
  schema=NAME             where the tables are
  migrate=false           do not make the tables if they are missing
  connections=4           at most this many: one listens, two renew
  pooler=true             a pooler such as PgBouncer is in between (usually noticed)
  application_name=TEXT   what the server shows

Parameters of ZooKeeper:

  password-file, password-env, connect-timeout=10s; tls=true and its parameters as above
  session=30s             the session's time-out: half of it is the longest TTL, and a
                          process that died keeps its locks for all of it
  acl=world               with a user name: nodes for every user, not for that one alone

Parameters of etcd: password-file, password-env, connect-timeout, and those for TLS.

No password is ever printed or logged.

What a store promises, and what makes yours unsafe or slow: baton doctor URL`,
	}, {
		Use:   "metrics",
		Short: "What --metrics writes",
		Long: `baton run, elect, once and agent write, with --metrics FILE, what they did in the text
format of Prometheus, for the textfile collector of node_exporter. docs/metrics.md lists
the metrics. Beside them there are

  baton_command_start_timestamp_seconds    when the last run began
  baton_command_end_timestamp_seconds      when the last finished run ended
  baton_command_exit_code                  its exit code
  baton_command_success_timestamp_seconds  when the last run ended that had the exit code 0
                                           and was not skipped (-E 0)

FILE ends in .prom, and is in the directory that --collector.textfile.directory names. It
is replaced when the command ends; in one that goes on also every 15 seconds,
and at once when a lease is lost or a leader is elected. Every user may read it. Each job
has a FILE of its own: of several commands with one FILE the last one wins. The label
"file" has its name, as the collector refuses a series that two files have.

Counters begin at 0 with each run: they say what the last run did, and rate() and
increase() are of use for an elect that goes on, not for a job from cron. The baton_command
metrics of the last run stay in FILE while the next one goes on.

If FILE cannot be written, a warning says so, and the exit code stays what it is.
Arguments that cannot be read leave FILE as it was.`,
		Example: `  baton run --metrics /var/lib/node_exporter/nightly.prom nightly -- ./nightly.sh

  time() - baton_command_success_timestamp_seconds{file="nightly.prom"} > 26 * 3600
  baton_command_exit_code{file="nightly.prom"} != 0
  baton_lock_lost_total{file="nightly.prom"} > 0`,
	}, {
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: "baton run\n\n" + exitTableRun + `
baton lock

` + exitTableLock + `
baton renew

` + exitTableHandle + `
baton unlock

` + exitTableHandle + `
baton elect

` + exitTableElect + `
baton once

` + exitTableOnce + `
baton ask

` + exitTableAsk + `
baton break

` + exitTableBreak + `
baton limit

` + exitTableLimit + `
baton doctor

` + exitTableDoctor + `
All other commands

` + exitTable,
	}}
}
