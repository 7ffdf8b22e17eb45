package sqlitestore

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/batonhq/baton/driver"
	"github.com/batonhq/baton/internal/findings"
	"github.com/batonhq/baton/internal/shellword"
)

// Thresholds of findings.
const (
	longLog    = 64 << 20 // bytes of the write-ahead log, which is cut at 4 MiB
	littleRoom = 64 << 20 // bytes left on the disk
	longSleep  = time.Second
	fullSync   = 2 // PRAGMA synchronous: FULL
)

// surroundings are the system's facts about the file.
type surroundings struct {
	fs    string        // "tmpfs", "overlay", or "" for any other
	free  int64         // bytes that may still be written; -1 if unknown
	links int           // hard links of the file; 0 if unknown
	slept time.Duration // how long the machine has been suspended since boot
}

// Finding implements driver.Refusal.
func (e *FileError) Finding() (f driver.Finding, ok bool) {
	f = driver.Finding{Severity: driver.Unsafe, What: e.Error(), Mend: "put the file on a local disk, or use a store with a server (baton help stores)"}
	switch e.Problem {
	case ErrNetworkFS:
		f.Name = "network-filesystem"
	case ErrOtherMachine:
		f.Name = "other-machine"
	case ErrReplaced:
		f.Name, f.Mend = "replaced", "stop whatever removes or replaces the file, and start the programs that use it again"
	case ErrTimeNamespace:
		f.Name, f.Mend = "time-namespace", "run the program outside of the time namespace, or use a store with a server (baton help stores)"
	case ErrFull:
		f.Name, f.Mend = "disk-full", "free some space on the disk of "+e.Path
	case ErrCorrupt:
		f.Name, f.Mend = "damaged", "stop all users of the file, then remove it with its -wal and -shm files"
	}
	return f, f.Name != ""
}

// Examine implements driver.Examiner.
func (s *Store) Examine(ctx context.Context) ([]driver.Finding, error) {
	all := s.judgeFile()
	err := s.judgeDatabase(ctx, &all)
	if refused, ok := errors.AsType[*FileError](err); ok {
		if f, ok := refused.Finding(); ok { // the problem arose after Open
			return append(all, f), nil
		}
	}
	return all, err
}

func (s *Store) judgeFile() (all findings.Table) {
	const unsafe, slow, note = driver.Unsafe, driver.Slow, driver.Note
	p, path := s.opts.around(s.path), shellword.Quote(s.path)
	all.Say(p.fs == "tmpfs", "tmpfs", unsafe, "move the file to a disk, for example /var/lib/baton/locks.db",
		"%s is on a file system in memory: a reboot forgets the tokens, and if the clock was set back they begin lower than before", s.path)
	all.Say(p.fs == "overlay", "container-layer", note, "put the file on a volume that all who share the locks mount",
		"%s is in a container's own layer: other containers and the host do not see it, and it ends with the container", s.path)
	all.Say(p.free >= 0 && p.free < littleRoom, "disk-space", unsafe, "free some space on the disk of "+path,
		"%d MiB are left on its disk: once it is full nothing can be locked, and leases are lost because they cannot be renewed", p.free>>20)
	all.Say(p.links > 1, "hard-links", unsafe, "find the others with find -samefile "+path+" and remove them; a symbolic link is safe",
		"the file has %d names: programs that open it by different ones keep different logs, and damage it", p.links)
	all.Say(p.slept >= longSleep, "suspended", note, "nothing; on a machine that holds locks for others, switch suspension off (systemctl mask sleep.target)",
		"this machine has been suspended for %v since it was booted: leases end meanwhile, and holders learn it when it wakes up", p.slept.Round(time.Second))

	file := modeOf(s.path)
	all.Say(file&0o002 != 0, "permissions", unsafe, "chmod o-w "+path,
		"all users of this machine may write the file (%v), and so take or break every lock", file.Perm())
	all.Say(file&0o022 == 0o020, "permissions-group", note, "chmod g-w "+path+", unless the group is meant to share these locks",
		"its group may write the file (%v), and so take or break every lock", file.Perm())
	dir := filepath.Dir(s.path)
	mode := modeOf(dir)
	open, sticky := mode&0o002 != 0, mode&os.ModeSticky != 0
	all.Say(open && !sticky, "directory", unsafe, "chmod o-w "+shellword.Quote(dir),
		"all users of this machine may replace the file, because they may write its directory %s (%v)", dir, mode)
	all.Say(open && sticky, "directory", note, "move the file, for example to /var/lib/baton/locks.db",
		"the file is in a directory for temporary files (%s): a cleaner that removes it frees every lock that is held", dir)

	if wal, err := os.Stat(s.path + "-wal"); err == nil {
		all.Say(wal.Size() > longLog, "log-size", slow, "find the program that keeps a transaction open (fuser -v "+path+") and end it; then sqlite3 "+path+" 'PRAGMA wal_checkpoint(TRUNCATE)'",
			"the write-ahead log has grown to %d MiB, because a reader has kept it from being cut: everything reads longer", wal.Size()>>20)
	}
	all.Say(s.mail.cannotBind(), "sockets", slow, "let this user make sockets in "+s.mail.dir.Name()+", and keep the file on a file system that has them",
		"no socket can be made beside the file: processes that wait look every %v instead of being told", pollDeaf)
	return all
}

// modeOf is the mode of a file, 0 if it does not exist.
func modeOf(path string) os.FileMode {
	if info, err := os.Stat(path); err == nil {
		return info.Mode()
	}
	return 0
}

// judgeDatabase adds what SQLite knows to the findings.
func (s *Store) judgeDatabase(ctx context.Context, all *findings.Table) error {
	var journal string
	var synchronous, others int
	err := s.do(ctx, func(*tx) error {
		for query, into := range map[string]any{
			"PRAGMA journal_mode": &journal,
			"PRAGMA synchronous":  &synchronous,
			`SELECT count(*) FROM sqlite_schema WHERE type = 'table'
				AND name NOT LIKE 'baton!_%' ESCAPE '!' AND name NOT LIKE 'sqlite!_%' ESCAPE '!'`: &others,
		} {
			if err := s.conn.QueryRowContext(ctx, query).Scan(into); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	all.Say(journal != "wal", "journal-mode", driver.Unsafe, "stop all users of the file, then sqlite3 "+shellword.Quote(s.path)+" 'PRAGMA journal_mode = WAL'",
		"the journal mode is %q instead of WAL: readers and writers keep each other out, and requests fail as busy", journal)
	all.Say(synchronous < fullSync, "synchronous", driver.Unsafe, "leave PRAGMA synchronous at FULL on the connections of this store",
		"commits do not wait for the disk (PRAGMA synchronous = %d): a crash of the machine forgets tokens that were given out", synchronous)
	all.Say(others > 0, "shared-database", driver.Slow, "give the locks a file of their own, or keep the application's write transactions short",
		"the file has %d tables of another program, whose write transactions keep every lock waiting", others)
	return nil
}

func (m *mailbox) cannotBind() bool {
	m.address(true)
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.deaf
}
