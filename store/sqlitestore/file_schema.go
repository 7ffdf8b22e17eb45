package sqlitestore

import (
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"strconv"
	"strings"
)

//go:embed file_schema.sql
var schema string

//go:embed limits.sql
var limitsSchema string

//go:embed kept.sql
var keptSchema string

const schemaVersion = 1

// names are the tables, indexes and views of the schema.
const names = "'baton_meta', 'baton_lock', 'baton_claim', 'baton_show', 'baton_limit', 'baton_limit_id', 'baton_limit_id_ends', 'baton_kept', 'baton_kept_until'"

// migrate makes missing tables and, after a reboot, empties those of locks.
func (s *Store) migrate(opening context.Context) error {
	ctx := context.Background()
	boot, err := s.opts.boot()
	if err != nil {
		return err
	}
	do := func(query string, args ...any) {
		if err == nil {
			_, err = s.conn.ExecContext(ctx, query, args...)
		}
	}
	// A file that is up to date is not written to.
	if ready, err := persist(opening, s, func() (bool, error) { return s.ready(boot) }); ready || err != nil {
		return err
	}
	if _, err := persist(opening, s, func() (sql.Result, error) { return s.conn.ExecContext(ctx, "BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	defer s.conn.ExecContext(ctx, "ROLLBACK") // no effect after the commit

	var tables int
	if err := s.conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name = 'baton_meta'").Scan(&tables); err != nil {
		return err
	}
	if tables == 0 {
		do(schema)
		do("INSERT INTO baton_meta VALUES ('schema', ?), ('boot', ''), ('booted', 0), ('high', 0)", schemaVersion)
		if err != nil {
			return err
		}
	}
	version, of, err := s.made()
	if err != nil {
		return err
	}
	if version > schemaVersion {
		return &FileError{Path: s.path, Problem: ErrNewerSchema, Err: errors.New("version " + strconv.Itoa(version))}
	}
	for _, text := range []string{schema, limitsSchema, keptSchema} {
		do(text) // each statement has IF NOT EXISTS
	}
	if of != boot {
		// Processes of another boot have ended, and the times of that boot have no
		// meaning.
		do("UPDATE baton_meta SET value = max(value, (SELECT ifnull(max(last), 0) FROM baton_lock)) WHERE name = 'high'")
		do("DELETE FROM baton_claim")
		do("DELETE FROM baton_lock")
		do("UPDATE baton_meta SET value = ? WHERE name = 'boot'", boot)
		do("UPDATE baton_meta SET value = ? WHERE name = 'booted'", s.opts.wall()-s.opts.clock())
	}
	do("COMMIT")
	return err
}

// ready reports whether the file has all tables of this version, and belongs to this boot.
func (s *Store) ready(boot string) (bool, error) {
	ctx := context.Background()
	var tables int
	err := s.conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_schema WHERE name IN ("+names+")").Scan(&tables)
	if err != nil || tables < strings.Count(names, ",")+1 {
		return false, err
	}
	version, of, err := s.made()
	return version == schemaVersion && of == boot, err
}

// made returns the version of the file's tables, and the boot of their times.
func (s *Store) made() (version int, boot string, err error) {
	err = s.conn.QueryRowContext(context.Background(),
		"SELECT (SELECT value FROM baton_meta WHERE name = 'schema'), (SELECT value FROM baton_meta WHERE name = 'boot')").Scan(&version, &boot)
	return version, boot, err
}
